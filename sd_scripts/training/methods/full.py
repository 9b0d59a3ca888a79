"""Full training: DreamBooth and fine-tuning, which train the weights of the model itself.

Each mechanism has its file: master_weights, weight_gradients, gradient_clipping, gradient_averaging (several
processes), fused_backward (updates within backward), sharded (FSDP); swapped blocks are made resident by
library/block_swap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sd_scripts.families.common.components import DENOISER, Components
from sd_scripts.families.common.family import Family, ModelWeights
from sd_scripts.library.diffusion.block_swap import SwapGroup, host_value
from sd_scripts.library.optim.optimizers import make_optimizer, rounds_weights
from sd_scripts.library.optim.partitioned_optimizer import PartitionedOptimizer
from sd_scripts.library.optim.recordable import ScalesGradients
from sd_scripts.options.full import FullOptions, FusedOptions, ModelFileOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.options.optimization.optimizer_table import known_optimizer
from sd_scripts.options.training import TrainingOptions
from sd_scripts.training.context import Context
from sd_scripts.training.execution.fused_backward import FusedBackward
from sd_scripts.training.execution.recorder import records_steps
from sd_scripts.training.execution.weight_gradients import WeightGradients
from sd_scripts.training.methods.gradient_averaging import AveragingInBackward
from sd_scripts.training.methods.master_weights import (
    Weight,
    equal_partitions,
    held_dtype,
    partitions_by_block,
    refresh_copies,
    require_shapes,
)
from sd_scripts.training.methods.method import Method, Trainable
from sd_scripts.training.methods.sharded import Shards, require_fsdp_support, shard

ENDINGS = {"safetensors": ".safetensors", "ckpt": ".ckpt", "diffusers": ""}


class Full(Method):
    """Trains all weights of the denoiser, and of the text encoders where asked for."""

    name = "full"

    def open(self, family: Family, context: Context, device: torch.device) -> Components:
        """Open the model; trained weights are in float32, unless full_bf16 or full_fp16 is on."""
        if context.sharded:
            require_fsdp_support(context.settings)
        held = held_dtype(context.settings[TrainingOptions])
        encoders = held if any(self.trains_text_encoders(family, context)) else None
        return family.open(context.settings, context.dtype, device, denoiser_dtype=held, encoder_dtype=encoders)

    def trains_text_encoders(self, family: Family, context: Context) -> tuple[bool, ...]:
        """Return which text encoders are trained; a learning rate of 0 freezes one."""
        base = context.settings[OptimizerOptions].learning_rate
        return tuple(rate > 0 for rate in _encoder_rates(family, context.settings[FullOptions], base))

    def needs_all(self, family: Family, network: NetworkOptions | None) -> bool:
        return family.saving.writes_all

    def change_base(self, family: Family, components: Components, context: Context, name: str) -> None:
        trained = compress(components.encoder_names, self.trains_text_encoders(family, context))
        if name in (DENOISER, *trained):
            components.module(name).requires_grad_(True)

    def prepare(self, family: Family, components: Components, context: Context) -> Trainable:
        base = context.settings[OptimizerOptions].learning_rate
        weights = list(_weights(family, components, context.settings[FullOptions], base))
        for weight in weights:
            weight.copy.requires_grad_(weight.rate > 0)
        weights = [weight for weight in weights if weight.rate > 0]
        if not weights:
            raise ValueError("learning_rate: all learning rates are 0, so nothing would be trained; set one above 0")
        trained_encoders = compress(components.text_encoders, self.trains_text_encoders(family, context))
        modules = [components.denoiser, *trained_encoders]
        if held_dtype(context.settings[TrainingOptions]) != context.dtype:
            for weight in weights:
                weight.master = nn.Parameter(weight.copy.detach())
        for module in (components.denoiser, *components.text_encoders):
            nn.Module.to(module, context.dtype)  # diffusers' own method warns needlessly here
        shards = shard(context, components.denoiser, weights, _blocks(family, components)) if context.sharded else None
        file = context.settings[ModelFileOptions]
        form = family.saving.form(components, file.save_model_as or ("safetensors" if file.use_safetensors else None))
        return FullTrainable(family, components, context, weights, modules, form=form, shards=shards)


class FullTrainable(Trainable):
    is_network = False

    def __init__(
        self,
        family: Family,
        components: Components,
        context: Context,
        weights: list[Weight],
        modules: list[nn.Module],
        *,
        form: str,
        shards: Shards | None = None,
    ):
        self._family, self._components, self._context = family, components, context
        self.weights, self.modules, self._form, self.shards = weights, modules, form, shards
        self.ending = ENDINGS[form]
        settings = context.settings
        self._fused = bool(settings[FusedOptions].chosen)
        self._max_norm = settings[OptimizerOptions].max_grad_norm
        self._accumulates = settings[TrainingOptions].gradient_accumulation_steps > 1
        self._swapper: SwapGroup = getattr(components.denoiser, "swapper", None) or SwapGroup([])
        self.consistent_in_backward = not (self._fused or len(self._swapper) or shards)
        groups = settings[FusedOptions].fused_optimizer_groups
        if groups:
            self.partitions = equal_partitions(weights, groups)
        else:
            self.partitions = partitions_by_block(weights, _blocks(family, components))
        self._optimizer: Optimizer | None = None
        if shards:
            shards.order = [weight.name for weights in self._groups().values() for weight in weights]
        self.gradients: WeightGradients = WeightGradients(
            weights, self.partitions, context.device, shards, accumulates=self._accumulates
        )

    @property
    def skips_nonfinite(self) -> bool:  # type: ignore[override]
        """Possible if all gradients exist before the first update: their norm then shows whether one is non-finite."""
        return isinstance(self._optimizer, ScalesGradients) and self._max_norm > 0 and self.shards is None

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [
            {"params": [weight.trained for weight in weights], "lr": weights[0].rate, "name": name}
            for name, weights in self._groups().items()
        ]

    def _groups(self) -> dict[str, list[Weight]]:
        groups: dict[str, list[Weight]] = {}
        for weight in self.weights:
            groups.setdefault(weight.group, []).append(weight)
        return groups

    def make_optimizer(self, options: OptimizerOptions) -> Optimizer:
        half_precision = self.weights[0].trained.dtype != torch.float32
        # a GradScaler expects the gradients on the optimizer's parameters
        scaled = self.weights[0].copy.dtype == torch.float16
        pairs = ((weight.master, weight.copy) for weight in self.weights if weight.master is not None)
        copies: dict[Tensor, Tensor] = {} if scaled else dict(pairs)
        seed = self._context.number("rounding")
        make = partial(make_optimizer, options, rounding=half_precision, seed=seed, copies=copies)
        self._optimizer = make(self.parameter_groups())
        whole = isinstance(self._optimizer, ScalesGradients)
        self.gradients.refreshes = whole and bool(copies)
        rounds = half_precision and not rounds_weights(self._optimizer)
        if (half_precision and not whole) or self._fused or len(self._swapper):
            self._optimizer = self._partitioned(
                make, rounds=rounds, together=known_optimizer(options.optimizer_type).one_rate
            )
        self.gradients.optimizer = self._optimizer
        optimizer_reads_them = self.gradients.refreshes or not copies
        afterwards = self._fused or self._accumulates or self.shards or records_steps(self._context)
        if self._context.world > 1 and optimizer_reads_them and not afterwards:
            self.gradients.averaging = AveragingInBackward(self.partitions, self._context.world)
        return self._optimizer

    def _partitioned(
        self, make: Callable[[list[dict[str, Any]]], Optimizer], *, rounds: bool, together: bool
    ) -> PartitionedOptimizer:
        """`together`: all weights are one partition of the optimizer."""
        place: dict[nn.Parameter, int] = {
            weight.trained: 0 if together else number
            for number, partition in enumerate(self.partitions)
            for weight in partition.weights
        }
        optimizer = PartitionedOptimizer(
            self.parameter_groups(),
            make,
            place.__getitem__,
            rounds=rounds,
            seed=self._context.number("rounding"),
            resident=self._resident,
        )
        if self._fused:
            FusedBackward(
                optimizer,
                self.partitions,
                self._swapper,
                max_norm=self._max_norm,
                processes=self._context.world,
                refreshes=self.gradients.refreshes,
            )
        return optimizer

    def _resident(self, key: Any) -> AbstractContextManager[None]:
        """Keep the weights that the optimizer updates on the device."""
        return self._swapper.updating(self.partitions[key].block)

    def updated(self) -> None:
        if isinstance(self._optimizer, ScalesGradients):
            self._optimizer.clip_factor = None
        if not self.gradients.refreshes:
            refresh_copies(self.weights)
        self.gradients.clear()

    def state_dict(self) -> dict[str, Tensor]:
        self._swapper.synchronize()
        return {weight.name: host_value(weight.trained).detach() for weight in self.weights}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        require_shapes(state, {weight.name: weight.trained.shape for weight in self.weights})
        for weight in self.weights:
            host_value(weight.trained).copy_(state[weight.name])
        self._swapper.refill()
        refresh_copies(self.weights)

    def save(self, path: Path, dtype: torch.dtype | None, metadata: dict[str, str]) -> None:
        """Write the model file. With shards, all processes gather and the first one writes."""
        self._swapper.synchronize()
        masters = {id(weight.copy): weight.master for weight in self.weights if weight.master is not None}

        def values(module: nn.Module) -> dict[str, Tensor]:
            trained = {n: masters[id(p)].detach() for n, p in module.named_parameters() if id(p) in masters}
            return module.state_dict() | trained

        encoders = [values(e) if e in self.modules else None for e in self._components.text_encoders]
        if self.shards:
            denoiser = self.shards.values({w.sharded: w.trained for w in self.weights if w.sharded is not None})
            if not self._context.is_main:
                return
        else:
            denoiser = values(self._components.denoiser)
        weights = ModelWeights(denoiser=denoiser, text_encoders=encoders)
        self._family.saving.write(self._components, weights, path, self._form, dtype, metadata)


def _blocks(family: Family, components: Components) -> list[nn.Module]:
    """Return the repeated blocks of the denoiser."""
    return [block for part in family.blocks.denoiser(components.denoiser) for block in part]


def _encoder_rates(family: Family, options: FullOptions, base: float) -> list[float]:
    """Return the learning rate of each text encoder of the family, whose default is `base`; 0 freezes it."""
    count = len(family.lora_text_encoders)
    if not (family.card.has("trains_text") and options.train_text_encoder):
        return [0.0] * count
    return [options.rate_of_encoder(number, base) for number in range(count)]


def _weights(family: Family, components: Components, options: FullOptions, base: float) -> Iterator[Weight]:
    """Yield every weight of the denoiser and of the text encoders that are trained, at its learning rate, which is
    `base` unless the options set one for its part of the model, and 0 if the family keeps it frozen."""
    rates = options.block_rates
    for name, parameter in components.denoiser.named_parameters():
        if family.frozen and name.startswith(family.frozen):
            yield Weight(f"denoiser.{name}", parameter, "unet", 0.0)
        elif rates and family.blocks.index:
            block = family.blocks.index(name)
            yield Weight(f"denoiser.{name}", parameter, f"unet_block{block}", rates[block])
        else:
            yield Weight(f"denoiser.{name}", parameter, "unet", base)
    encoder_rates = _encoder_rates(family, options, base)
    for number, (encoder, rate) in enumerate(zip(components.text_encoders, encoder_rates, strict=True), 1):
        if rate <= 0:
            continue
        group = f"text_encoder{number}"
        for name, parameter in encoder.named_parameters():
            yield Weight(f"{group}.{name}", parameter, group, rate)
