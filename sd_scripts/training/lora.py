"""LoRA training: low-rank adapters on the frozen layers of a model.

With token_string the embeddings of a new token learn too (pivotal tuning).
"""

from __future__ import annotations

from itertools import compress
from pathlib import Path

import torch
from torch import Tensor

from sd_scripts.data.dataset import DataPlan
from sd_scripts.families.family import Components, Family
from sd_scripts.library.safetensors_io import save_model, with_hashes
from sd_scripts.networks.adapter import Tensors, layer_names
from sd_scripts.networks.lora_files import merge, read_plain_lora
from sd_scripts.networks.network import AdapterNetwork, attach
from sd_scripts.networks.plan import AdaptedModule, parameter_groups, plan_layers, read_args
from sd_scripts.networks.targets import adaptable, layers_after_attention, projected_together
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.network import NetworkOptions
from sd_scripts.options.optimizer import OptimizerOptions
from sd_scripts.options.saving import LoraFileOptions
from sd_scripts.options.settings import Settings
from sd_scripts.options.training import TrainingOptions
from sd_scripts.runs.outputs import EMBEDDING_ENDING
from sd_scripts.training.context import Context
from sd_scripts.training.embeddings import (
    add_token,
    find_end_by_id,
    plan_embeddings,
    require_token_in_captions,
    save_embeddings,
    trained_token,
)
from sd_scripts.training.external_network import find_module, make_external_network
from sd_scripts.training.gradient_clipping import clip_factor
from sd_scripts.training.trainable import NetworkTrainable, Trainable


class Lora:
    """Trains low-rank adapters on frozen layers."""

    name = "lora"

    def check(self, family: Family, settings: Settings) -> list[str]:
        options = settings[NetworkOptions]
        try:
            if _is_ours(options, family):
                read_args(settings, family.lora, warn=settings.remark)
            else:
                find_module(options.network_module or "")
        except ValueError as error:
            return str(error).splitlines()
        return []

    def check_data(self, family: Family, context: Context, plan: DataPlan) -> None:
        require_token_in_captions(family, context.settings, plan, context.warn)

    def open(self, family: Family, context: Context, device: torch.device) -> Components:
        if context.sharded:
            raise ValueError(
                "use_fsdp: not supported for LoRA, which is small while the base model is frozen; launch with "
                "--multi_gpu instead"
            )
        components = family.open(context.settings, context.dtype, device)
        add_token(family, components, context)
        return components

    def trains_text_encoders(self, family: Family, context: Context) -> tuple[bool, ...]:
        if trained_token(family, context.settings):
            return (True,) * len(family.text.embeddings)
        return self._adapts_text_encoders(family, context)

    def _adapts_text_encoders(self, family: Family, context: Context) -> tuple[bool, ...]:
        options, base = context.settings[NetworkOptions], context.settings[OptimizerOptions].learning_rate
        return tuple(
            adapted and not options.network_train_unet_only and options.rate_of_encoder(number, base) > 0
            for number, adapted in enumerate(family.text.adapted(context.settings))
        )

    def needs_all(self, family: Family, settings: Settings) -> bool:
        """An external network is shown all modules and may read their weights."""
        return not _is_ours(settings[NetworkOptions], family)

    def change_base(self, family: Family, components: Components, context: Context, name: str) -> None:
        """Merge the LoRA files of base_weights into the component."""
        options = context.settings[NetworkOptions]
        modules = _all_targets(family, components, context)
        changed = [each for each in modules if each.module is components.module(name)]
        if not changed:
            return
        strengths = options.base_weights_multiplier or [1.0] * len(options.base_weights)
        for file, strength in zip(options.base_weights, strengths, strict=True):
            tensors = read_plain_lora("base_weights", Path(file), modules)
            layers = (
                each.target.name(path) for each in modules for path, _ in adaptable(each.module, each.target, conv=True)
            )
            if layer_names(tensors).isdisjoint(layers):
                raise ValueError(f"base_weights: '{file}' has no layer of this model; choose a LoRA made for it")
            merge(changed, tensors, strength)

    def prepare(self, family: Family, components: Components, context: Context) -> Trainable:
        options = context.settings[NetworkOptions]
        all_targets = _all_targets(family, components, context)
        trains_encoder = self._adapts_text_encoders(family, context)
        if options.network_train_text_encoder_only and not any(trains_encoder):
            raise ValueError("learning_rate: all learning rates are 0, so nothing would be trained; set one above 0")
        if not _is_ours(options, family):
            return make_external_network(family, components, context, trains_encoder=trains_encoder)
        modules = [] if options.network_train_text_encoder_only else _denoiser(family, components, context)
        modules += compress(_text_encoders(family, components, context), trains_encoder)

        args = read_args(context.settings, family.lora, warn=lambda _: None)  # check has warned already
        file = options.network_weights
        weights = read_plain_lora("network_weights", Path(file), all_targets) if file else {}
        plans = plan_layers(modules, args, weights if options.dim_from_weights else None)
        network = attach(
            [*plans, *plan_embeddings(family, components, context)],
            args.dropouts,
            torch.Generator().manual_seed(context.number("network")),
            torch.bfloat16 if context.settings[TrainingOptions].full_bf16 else torch.float32,
            perturbation=args.perturbation,
            device=context.device,
        )
        find_end_by_id(components)
        if weights:
            _load_initial_weights(weights, network, context)
        if context.settings[CompileOptions].compile:
            _fold(network, [each for each in modules if each.target.folds])
        return LoraTrainable(
            network,
            parameter_groups(network),
            [each.module for each in all_targets],
            norm_limit=options.scale_weight_norms,
            ending=f".{context.settings[LoraFileOptions].save_model_as}",
        )


class LoraTrainable(NetworkTrainable):
    """Our own adapters, with their float32 master weights in one flat buffer."""

    network: AdapterNetwork
    skips_nonfinite = True

    @property
    def companions(self) -> tuple[str, ...]:  # type: ignore[override]
        return () if len(self.network.layers) == len(self.network.layers_in_file) else (EMBEDDING_ENDING,)

    def save_companion(self, suffix: str, path: Path, dtype: torch.dtype | None, metadata: dict[str, str]) -> None:
        save_embeddings(self.network, path, dtype, metadata)

    def collect_gradients(self) -> None:
        self.network.collect_gradients()

    @property
    def accumulates(self) -> bool:  # type: ignore[override]
        return self.network.collected

    def before_recording(self) -> None:
        self.network.hold_gradients()

    def replayed(self) -> None:
        self.network.collected_by_replay()

    def forget_recorded(self) -> None:
        self.network.release_gradients()

    def gradients(self) -> dict[str, Tensor]:
        return {"masters": self.network.gradients}

    def discard_gradients(self) -> None:
        self.network.clear_copies()
        self.network.zero_grad()

    def average_gradients(self, processes: int) -> None:
        torch.distributed.all_reduce(self.network.gradients)
        self.network.gradients.div_(processes)

    def clip(self, max_norm: float) -> Tensor:
        gradients = self.network.gradients
        norm = torch.linalg.vector_norm(gradients)
        gradients.nan_to_num_(0.0, 0.0, 0.0).mul_(clip_factor(norm, max_norm))
        return norm

    def updated(self) -> None:
        self.network.perturb()
        self.network.zero_grad()
        self.network.refresh()

    def limit_norms(self) -> None:
        if self.norm_limit:
            self.network.limit_norms(self.norm_limit)
            self.network.refresh()

    def state_dict(self) -> dict[str, Tensor]:
        noise = self.network.row_noise
        return {"masters": self.network.masters, **({"row_noise": noise.deviations} if noise else {})}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        masters = state["masters"]
        if masters.shape != self.network.masters.shape:
            raise ValueError("resume: the state belongs to a different network; restore network_dim and network_args")
        with torch.no_grad():
            self.network.masters.copy_(masters)
            if self.network.row_noise and "row_noise" in state:
                self.network.row_noise.deviations.copy_(state["row_noise"])
        self.network.refresh()

    def save(self, path: Path, dtype: torch.dtype | None, metadata: dict[str, str]) -> None:
        tensors = self.network.file_tensors(dtype)
        save_model(path, tensors, with_hashes(tensors, metadata))


def _fold(network: AdapterNetwork, modules: list[AdaptedModule]) -> None:
    network.fold(
        (module for each in modules for module in each.module.modules()),
        [group for each in modules for group in projected_together(each.module, each.target)],
        [layer for each in modules for layer in layers_after_attention(each.module, each.target)],
    )


def _load_initial_weights(weights: Tensors, network: AdapterNetwork, context: Context) -> None:
    absent = network.load_tensors(weights)
    if len(absent) == len(network.layers_in_file):
        file = context.settings[NetworkOptions].network_weights
        raise ValueError(f"network_weights: '{file}' has no layer of this network; choose a file made for this model")
    if absent:
        context.warn(f"network_weights: {len(absent)} layers are not in the file and start fresh: {absent[0]}, ...")
    if left := sorted(layer_names(weights) - {layer.name for layer in network.layers}):
        context.warn(
            f"network_weights: {len(left)} layers of the file are not trained in this run and will be missing "
            f"from its files: {left[0]}, ..."
        )
    network.refresh()


def _is_ours(options: NetworkOptions, family: Family) -> bool:
    modules = family.card.network_modules
    return (options.network_module or modules[0]).removeprefix("sd_scripts.") in modules


def _all_targets(family: Family, components: Components, context: Context) -> list[AdaptedModule]:
    return [*_denoiser(family, components, context), *_text_encoders(family, components, context)]


def _denoiser(family: Family, components: Components, context: Context) -> list[AdaptedModule]:
    lr, base = context.settings[NetworkOptions].unet_lr, context.settings[OptimizerOptions].learning_rate
    return [AdaptedModule(module=components.denoiser, target=family.lora, lr=base if lr is None else lr)]


def _text_encoders(family: Family, components: Components, context: Context) -> list[AdaptedModule]:
    options, base = context.settings[NetworkOptions], context.settings[OptimizerOptions].learning_rate
    pairs = zip(components.text_encoders, family.lora_text_encoders, strict=True)
    return [
        AdaptedModule(module=encoder, target=target, lr=options.rate_of_encoder(number, base))
        for number, (encoder, target) in enumerate(pairs)
    ]
