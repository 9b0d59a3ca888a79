"""A training method says what learns and what is saved; it never asks which family it is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import safetensors.torch
import torch
from torch import Tensor

from sd_scripts.families.family import Family, Parts
from sd_scripts.library.compile_utils import maybe_uncompile_state_dict
from sd_scripts.networks.lora import adaptable, attach
from sd_scripts.networks.plan import Adapted, parameter_groups, plan_from_weights, plan_layers, read_args
from sd_scripts.options.network import NetworkOptions
from sd_scripts.options.optimizer import OptimizerOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.training.context import Context
from sd_scripts.training.foreign import make_foreign
from sd_scripts.training.learning import Learning, LoraLearning

OUR_MODULE = "networks.lora"


class Method(Protocol):
    name: str

    def trains_text_encoders(self, context: Context) -> bool: ...

    def prepare(self, family: Family, parts: Parts, context: Context) -> Learning:
        """Make the model ready to learn. The parts lie on the device already."""
        ...


class Lora:
    """Small matrices beside the frozen layers."""

    name = "lora"

    def trains_text_encoders(self, context: Context) -> bool:
        options = context.settings[NetworkOptions]
        rates = options.text_encoder_lr or [context.settings[OptimizerOptions].learning_rate]
        return not options.network_train_unet_only and any(rate > 0 for rate in rates)

    def prepare(self, family: Family, parts: Parts, context: Context) -> Learning:
        options = context.settings[NetworkOptions]
        everything = [*_denoiser(family, parts, context), *_text_encoders(family, parts, context)]
        merge_base_weights(everything, options)
        if (options.network_module or OUR_MODULE) != OUR_MODULE:
            return make_foreign(parts, context, trains_text=self.trains_text_encoders(context))
        modules = everything
        if options.network_train_text_encoder_only:
            modules = _text_encoders(family, parts, context)
        elif not self.trains_text_encoders(context):
            modules = _denoiser(family, parts, context)

        args = read_args(options, family.lora.block_counts, context.warn)
        weights = read_lora(Path(options.network_weights)) if options.network_weights else {}
        plans = plan_from_weights(modules, weights) if options.dim_from_weights else plan_layers(modules, options, args)
        full_bf16 = context.settings[TrainingOptions].full_bf16
        network = attach(
            plans,
            args.dropouts,
            torch.Generator().manual_seed(context.number("network")),
            masters_dtype=torch.bfloat16 if full_bf16 else torch.float32,
        )
        if weights:
            absent = network.load_tensors(weights)
            if len(absent) == len(network.layers):
                raise ValueError(
                    f"network_weights: '{options.network_weights}' has no layer of this network; "
                    "is it for another model?"
                )
            if absent:
                context.warn(
                    f"network_weights: {len(absent)} layers are not in the file and begin anew: {absent[0]}, ..."
                )
            network.refresh()
        return LoraLearning(network, parameter_groups(network, modules, args), [each.module for each in everything])


def read_lora(path: Path) -> dict[str, Tensor]:
    """Tensors of a LoRA file. Raises ValueError naming network_weights."""
    if not path.is_file():
        raise ValueError(f"network_weights: there is no file '{path}'")
    try:
        if path.suffix == ".safetensors":
            tensors = safetensors.torch.load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"network_weights: '{path}' cannot be read: {str(error).splitlines()[0]}") from None
    return maybe_uncompile_state_dict(tensors)


@torch.no_grad()
def merge_base_weights(modules: list[Adapted], options: NetworkOptions) -> None:
    """Add LoRA files to the base weights: W += strength · alpha/rank · up · down."""
    strengths = options.base_weights_multiplier or [1.0] * len(options.base_weights)
    for file, strength in zip(options.base_weights, strengths, strict=True):
        try:
            tensors = read_lora(Path(file))
        except ValueError as error:
            raise ValueError(str(error).replace("network_weights", "base_weights")) from None
        merged = sum(_merge(each, tensors, strength) for each in modules)
        if not merged:
            raise ValueError(f"base_weights: '{file}' has no layer of this model; is it a LoRA for another one?")


def _merge(each: Adapted, tensors: Mapping[str, Tensor], strength: float) -> int:
    merged = 0
    for path, layer in adaptable(each.module, each.target, conv=True):
        name = each.target.name(path)
        down, up = (tensors.get(f"{name}.lora_{part}.weight") for part in ("down", "up"))
        if down is None or up is None:
            continue
        alpha = float(tensors.get(f"{name}.alpha", down.shape[0]))
        device = layer.weight.device
        change = up.to(device).float().flatten(1) @ down.to(device).float().flatten(1)
        layer.weight += (change * (strength * alpha / down.shape[0])).view(layer.weight.shape).to(layer.weight.dtype)
        merged += 1
    return merged


def _denoiser(family: Family, parts: Parts, context: Context) -> list[Adapted]:
    lr = context.settings[NetworkOptions].unet_lr
    base = context.settings[OptimizerOptions].learning_rate
    return [Adapted(module=parts.denoiser, target=family.lora, group="unet", lr=base if lr is None else lr)]


def _text_encoders(family: Family, parts: Parts, context: Context) -> list[Adapted]:
    """One rate for each encoder; a single one is for both."""
    base = context.settings[OptimizerOptions].learning_rate
    rates = context.settings[NetworkOptions].text_encoder_lr or [base]
    return [
        Adapted(module=encoder, target=target, group=f"textencoder {i + 1}", lr=rates[min(i, len(rates) - 1)])
        for i, (encoder, target) in enumerate(zip(parts.text_encoders, family.lora_text_encoders, strict=True))
    ]
