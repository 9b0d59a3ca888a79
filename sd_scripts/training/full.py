"""Full training: DreamBooth and fine-tuning, which train the weights of the model itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from sd_scripts.families.family import Components, Family, ModelWeights
from sd_scripts.library.block_swap import SwapGroup, host_value
from sd_scripts.library.optimizers import finds_one_rate, make_optimizer
from sd_scripts.library.partitioned_optimizer import PartitionedOptimizer
from sd_scripts.library.rounding_adamw import RoundingAdamW
from sd_scripts.options.flux import FluxMemoryOptions
from sd_scripts.options.full import FullOptions, FusedOptions, ModelFileOptions
from sd_scripts.options.optimizer import OptimizerOptions
from sd_scripts.options.settings import Settings
from sd_scripts.options.training import TrainingOptions
from sd_scripts.training.context import DTYPES, Context
from sd_scripts.training.sharded import Shards, require_fsdp_support
from sd_scripts.training.trainable import Trainable

ENDINGS = {"safetensors": ".safetensors", "ckpt": ".ckpt", "diffusers": ""}
BUCKET = 2**28
"""Bytes of gradients per all-reduce."""
MAX_IN_FLIGHT = 4
"""Blocks whose all-reduce may be in flight at once; each needs its gradients twice in memory."""


class Full:
    """Trains all weights of the denoiser, and of SDXL's text encoders where asked for."""

    name = "full"

    def check(self, family: Family, settings: Settings) -> list[str]:
        fused, optimizer = settings[FusedOptions], settings[OptimizerOptions]
        memory = settings.get(FluxMemoryOptions)
        swaps = "blocks_to_swap" if memory and memory.blocks_to_swap else ""
        if finds_one_rate(optimizer) and (apart := fused.chosen or swaps):
            return [
                f"optimizer_type: {optimizer.optimizer_type} finds one learning rate from all weights together, which "
                f"{apart} never has in memory at once; choose another optimizer, or turn {apart} off"
            ]
        return []

    def load(self, family: Family, context: Context, device: torch.device) -> Components:
        """Load the model; trained weights are in float32, unless full_bf16 or full_fp16 is on."""
        if context.sharded:
            require_fsdp_support(context.settings)
        learned = held_dtype(context.settings)
        encoders = learned if any(self.trains_text_encoders(family, context)) else None
        return family.load(context.settings, context.dtype, device, denoiser_dtype=learned, encoder_dtype=encoders)

    def trains_text_encoders(self, family: Family, context: Context) -> tuple[bool, ...]:
        """Return which text encoders are trained; a learning rate of 0 freezes one."""
        options = context.settings[FullOptions]
        rates = _encoder_rates(context.settings)
        return tuple(family.trains_text_encoders and options.train_text_encoder and rate > 0 for rate in rates)

    def change_base(self, family: Family, components: Components, context: Context) -> None:
        components.denoiser.requires_grad_(True)
        for encoder in compress(components.text_encoders, self.trains_text_encoders(family, context)):
            encoder.requires_grad_(True)

    def prepare(self, family: Family, components: Components, context: Context) -> Trainable:
        weights = [*_denoiser(family, components, context.settings)]
        learns_text = self.trains_text_encoders(family, context)
        for number, rate in compress(enumerate(_encoder_rates(context.settings)), learns_text):
            encoder, group = components.text_encoders[number], f"text_encoder{number + 1}"
            weights += [Weight(f"{group}.{n}", p, group, rate) for n, p in encoder.named_parameters()]
        for weight in weights:
            weight.copy.requires_grad_(weight.rate > 0)
        weights = [weight for weight in weights if weight.rate > 0]
        if not weights:
            raise ValueError("learning_rate: all learning rates are 0, so nothing would be trained; set one above 0")
        modules = [components.denoiser, *compress(components.text_encoders, learns_text)]
        if held_dtype(context.settings) != context.dtype:
            for weight in weights:
                weight.master = nn.Parameter(weight.copy.detach())
        for module in (components.denoiser, *components.text_encoders):
            nn.Module.to(module, context.dtype)  # diffusers' own method warns needlessly here
        shards = _shard(family, components, context, weights) if context.sharded else None
        file = context.settings[ModelFileOptions]
        form = family.saved_form(components, file.save_model_as or ("safetensors" if file.use_safetensors else None))
        return FullTrainable(family, components, context, weights, modules, form=form, shards=shards)


@dataclass(eq=False)
class Weight:
    """A trained tensor."""

    name: str
    """Module, then its parameter: `denoiser.conv_in.weight`."""
    copy: nn.Parameter
    """The parameter that the model computes with."""
    group: str
    rate: float
    master: nn.Parameter | None = None
    """The float32 value that `copy` is rounded from; None if there is only the copy."""
    sharded: nn.Parameter | None = None
    """The module's parameter, if `copy` and `master` are the rows of it that this process holds (FSDP)."""

    @property
    def learned(self) -> nn.Parameter:
        """The parameter that the optimizer updates."""
        return self.copy if self.master is None else self.master


@dataclass(eq=False)
class Partition:
    """Weights that are updated together, as soon as the last of their gradients is ready."""

    weights: list[Weight] = field(default_factory=list)
    block: nn.Module | None = None
    """The block whose weights these are, if they are one: block swap may keep it off the device."""
    ready_count: int = 0
    """How many of the gradients are ready."""
    averaged: list[Tensor] | None = None
    """Gradients that the processes had averaged when the backward pass failed in this one. The other processes do not
    average them again, so the repeated pass takes these."""

    @property
    def complete(self) -> bool:
        return self.ready_count == len(self.weights)


class GradientAverage:
    """Averages gradients over the processes with one asynchronous all-reduce."""

    def __init__(self, gradients: list[Tensor], processes: int):
        self._gradients, self._processes = gradients, processes
        self._flat = torch._utils._flatten_dense_tensors(gradients)
        self._work = torch.distributed.all_reduce(self._flat, async_op=True)

    def finish(self) -> None:
        self._work.wait()
        self._flat.div_(self._processes)
        torch._foreach_copy_(self._gradients, list(torch._utils._unflatten_dense_tensors(self._flat, self._gradients)))


class FullTrainable:
    needs_autocast = False
    static_graph = True
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
        self.weights, self._modules, self._form, self.shards = weights, modules, form, shards
        self.ending = ENDINGS[form]
        settings = context.settings
        self._fused, self._max_norm = bool(settings[FusedOptions].chosen), settings[OptimizerOptions].max_grad_norm
        self._accumulates = settings[TrainingOptions].gradient_accumulation_steps > 1
        swapper = getattr(components.denoiser, "swapper", None)
        self._swapper: SwapGroup | None = swapper if swapper is not None and len(swapper) else None
        self.consistent_in_backward = not (self._fused or self._swapper or shards)
        self.partitions = self._into_partitions()
        self.in_flight: deque[GradientAverage] = deque()
        self._optimizer: Optimizer | None = None
        if shards:
            shards.order = [weight.name for weights in self._groups().values() for weight in weights]
        self._averages_in_backward = False
        """Whether the processes average the gradients of a block as soon as backward has computed them."""
        self._refreshes = False
        """Whether the optimizer reads the copies' gradients and updates the copies itself."""

    @property
    def skips_nonfinite(self) -> bool:
        """Possible if all gradients exist before the first update: their norm then shows whether one is non-finite."""
        return isinstance(self._optimizer, RoundingAdamW) and self._max_norm > 0 and self.shards is None

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [
            {"params": [weight.learned for weight in weights], "lr": weights[0].rate, "name": name}
            for name, weights in self._groups().items()
        ]

    def _groups(self) -> dict[str, list[Weight]]:
        groups: dict[str, list[Weight]] = {}
        for weight in self.weights:
            groups.setdefault(weight.group, []).append(weight)
        return groups

    def make_optimizer(self, options: OptimizerOptions) -> Optimizer:
        half_precision = self.weights[0].learned.dtype != torch.float32
        scaled = (
            self.weights[0].copy.dtype == torch.float16
        )  # a GradScaler expects the gradients on the optimizer's parameters
        pairs = ((weight.master, weight.copy) for weight in self.weights if weight.master is not None)
        copies: dict[Tensor, Tensor] = {} if scaled else dict(pairs)
        make: Callable[[list[dict[str, Any]]], Optimizer] = partial(
            make_optimizer,
            options,
            rounding=half_precision or bool(copies),
            seed=self._context.number("rounding"),
            copies=copies,
        )
        self._optimizer = make(self.parameter_groups())
        ours = isinstance(self._optimizer, RoundingAdamW)
        self._refreshes = ours and bool(copies)
        rounds = half_precision and not ours
        if rounds or self._fused or self._swapper:
            together = finds_one_rate(options)
            place = {
                w.learned: 0 if together else n
                for n, partition in enumerate(self.partitions)
                for w in partition.weights
            }
            self._optimizer = PartitionedOptimizer(
                self.parameter_groups(),
                make,
                place.__getitem__,
                rounds=rounds,
                seed=self._context.number("rounding"),
                resident=self._resident,
            )
            if self._fused:
                self._step_in_backward(self._optimizer)
        optimizer_reads_them = self._refreshes or not copies
        if self._context.world > 1 and optimizer_reads_them and not (self._fused or self._accumulates or self.shards):
            self._averages_in_backward = True
            self._average_in_backward()
        return self._optimizer

    def collect_gradients(self) -> None:
        """Accumulate the copies' gradients in float32, unless the optimizer reads them in place."""
        _collect_shard_gradients(self.weights)
        if self._accumulates or not self._refreshes:
            _collect(self.weights)

    def discard_gradients(self) -> None:
        """Discard the gradients, but keep what a failed fused backward pass has updated: the repeated pass updates only
        the rest. Gradients that the processes have averaged are kept too."""
        self._finish_averaging()
        if self._averages_in_backward:
            for partition in self.partitions:
                if partition.block is not None and partition.complete:
                    partition.averaged = _gradients(partition.weights)
        _collect_shard_gradients(self.weights)
        _clear_gradients(self.weights)
        for partition in self.partitions:
            partition.ready_count = 0
        if self.shards:
            self.shards.reset_iteration()

    def average_gradients(self, processes: int) -> None:
        """Average what backward has not: shards and complete partitions are done by then."""
        self._finish_averaging()
        rest = (weight for partition in self.partitions if not partition.complete for weight in partition.weights)
        _average(_gradients(weight for weight in rest if weight.sharded is None), processes)

    def _finish_averaging(self) -> None:
        while self.in_flight:
            self.in_flight.popleft().finish()

    def clip(self, max_norm: float) -> Tensor:
        """Clip the gradient norm. A fused backward pass has clipped each gradient by itself, except in incomplete
        partitions."""
        if isinstance(self._optimizer, RoundingAdamW):
            norm = self._sharded_grad_norm() if self.shards else self._optimizer.gradient_norm()
            self._optimizer.clip_factor = _clip_factor(norm, max_norm)
            return norm
        gradients = _gradients(self.weights)
        norm = self._sharded_grad_norm() if self.shards else _grad_norm(gradients, self._context.device)
        if gradients:
            torch._foreach_mul_(gradients, _clip_factor(norm, max_norm))
        return norm

    def _sharded_grad_norm(self) -> Tensor:
        """Return the norm over all processes; weights that are not sharded are the same in each."""
        device = self._context.device
        rows, others = (
            _grad_norm(_gradients(w for w in self.weights if (w.sharded is not None) == sharded), device)
            for sharded in (True, False)
        )
        squares = rows.square()
        torch.distributed.all_reduce(squares)
        return (squares + others.square()).sqrt()

    def updated(self) -> None:
        if isinstance(self._optimizer, RoundingAdamW):
            self._optimizer.clip_factor = None
        if not self._refreshes:
            _refresh(self.weights)
        _clear_gradients(self.weights)
        for partition in self.partitions:
            partition.ready_count = 0

    def limit_norms(self) -> None:
        """Do nothing: full weights have no norm limit."""

    def train(self, mode: bool = True) -> None:
        for module in self._modules:
            module.train(mode)

    def state_dict(self) -> dict[str, Tensor]:
        if self._swapper:
            self._swapper.synchronize()
        return {weight.name: host_value(weight.learned).detach() for weight in self.weights}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for weight in self.weights:
            if weight.name not in state or state[weight.name].shape != weight.learned.shape:
                raise ValueError(
                    "resume: the state belongs to a different model; train the model that it was saved from"
                )
        for weight in self.weights:
            host_value(weight.learned).copy_(state[weight.name])
        if self._swapper:
            self._swapper.refill()
        _refresh(self.weights)

    def save(self, path: Path, dtype: torch.dtype | None, metadata: dict[str, str]) -> None:
        """Write the model file. With shards, all processes gather and the first one writes."""
        learned = {id(weight.copy): weight for weight in self.weights}
        if self._swapper:
            self._swapper.synchronize()

        def values(module: nn.Module) -> dict[str, Tensor]:
            state = module.state_dict()
            masters = ((n, learned[id(p)].master) for n, p in module.named_parameters() if id(p) in learned)
            return state | {name: master.detach() for name, master in masters if master is not None}

        encoders = [values(e) if e in self._modules else None for e in self._components.text_encoders]
        if self.shards:
            denoiser = self.shards.values({w.sharded: w.learned for w in self.weights if w.sharded is not None})
            if not self._context.is_main:
                return
        else:
            denoiser = values(self._components.denoiser)
        weights = ModelWeights(denoiser=denoiser, text_encoders=encoders)
        self._family.save(self._components, weights, path, self._form, dtype, metadata)

    # Partitions

    def _into_partitions(self) -> list[Partition]:
        """Return one partition per repeated block, whose gradients come together, and one per weight outside of the
        blocks; or fused_optimizer_groups of equal size."""
        groups = self._context.settings[FusedOptions].fused_optimizer_groups
        if groups:
            size = -(-len(self.weights) // groups)
            return [Partition(self.weights[i : i + size]) for i in range(0, len(self.weights), size)]
        blocks = [block for part in self._family.compile_targets(self._components.denoiser) for block in part]
        host_copy = {id(p): block for block in blocks for p in block.parameters()}
        partitions: dict[object, Partition] = {}
        for weight in self.weights:
            block = host_copy.get(id(weight.copy))
            partitions.setdefault(block or weight, Partition(block=block)).weights.append(weight)
        return list(partitions.values())

    def _step_in_backward(self, optimizer: Optimizer) -> None:
        assert isinstance(optimizer, PartitionedOptimizer)
        for key, partition in enumerate(self.partitions):
            for weight in partition.weights:
                weight.copy.register_post_accumulate_grad_hook(
                    partial(self._on_gradient, partition, partial(self._update, optimizer, key))
                )

    def _average_in_backward(self) -> None:
        """Average whole blocks during backward; weights outside of them would be many small all-reduces."""
        for partition in self.partitions:
            for weight in partition.weights if partition.block is not None else ():
                begin = partial(self._begin_averaging, partition)
                weight.copy.register_post_accumulate_grad_hook(partial(self._on_gradient, partition, begin))

    def _on_gradient(self, partition: Partition, do: Callable[[], None], _: Tensor) -> None:
        partition.ready_count += 1
        if partition.complete:
            do()

    @torch.no_grad()
    def _begin_averaging(self, partition: Partition) -> None:
        if partition.averaged is not None:
            torch._foreach_copy_(_gradients(partition.weights), partition.averaged)
            partition.averaged = None
            return
        if len(self.in_flight) == MAX_IN_FLIGHT:
            self.in_flight.popleft().finish()
        self.in_flight.append(GradientAverage(_gradients(partition.weights), self._context.world))

    @torch.no_grad()
    def _update(self, optimizer: PartitionedOptimizer, key: int) -> None:
        """Update a partition whose gradients are ready; its block, if it has one, is on the device."""
        partition = self.partitions[key]
        partition.ready_count = 0
        if optimizer.was_stepped(key):  # before this step failed and restarted
            _clear_gradients(partition.weights)
            return
        if not self._refreshes:
            _collect(partition.weights)
        gradients = _gradients(partition.weights)
        if self._context.world > 1:
            _average(gradients, self._context.world)
        if self._max_norm > 0:
            for gradient in gradients:
                gradient.mul_(_clip_factor(torch.linalg.vector_norm(gradient), self._max_norm))
        optimizer.step_partition(key)
        if not self._refreshes:
            _refresh(partition.weights)
        _clear_gradients(partition.weights)
        if self._swapper and partition.block is not None:
            self._swapper.changed(partition.block)

    @contextmanager
    def _resident(self, key: Any) -> Iterator[None]:
        """Keep on the device what the optimizer updates."""
        block = self.partitions[key].block
        if self._swapper is None or block is None:
            yield
            return
        with self._swapper.resident(block):
            yield
            self._swapper.changed(block)


def held_dtype(settings: Settings) -> torch.dtype:
    """Return the dtype that trained weights are held in."""
    training = settings[TrainingOptions]
    return DTYPES[training.mixed_precision] if training.full_bf16 or training.full_fp16 else torch.float32


def _denoiser(family: Family, components: Components, settings: Settings) -> Iterator[Weight]:
    rates, base = settings[FullOptions].block_rates, settings[OptimizerOptions].learning_rate
    for name, parameter in components.denoiser.named_parameters():
        if rates and family.block_of:
            block = family.block_of(name)
            yield Weight(f"denoiser.{name}", parameter, f"unet_block{block}", rates[block])
        else:
            yield Weight(f"denoiser.{name}", parameter, "unet", base)


def _shard(family: Family, components: Components, context: Context, weights: list[Weight]) -> Shards:
    """Shard the denoiser. Text encoders are small and stay whole in each process."""
    blocks = [block for part in family.compile_targets(components.denoiser) for block in part]
    shards = Shards(context, components.denoiser, blocks)
    cut = {f"denoiser.{name}": parameter for name, parameter in components.denoiser.named_parameters()}
    for weight in weights:
        weight.sharded = cut.get(weight.name)
        if weight.sharded is not None:
            weight.copy = shards.add(weight.name, weight.sharded)
            if weight.master is not None:
                weight.master = nn.Parameter(shards.rows(weight.master.detach()).to(context.device, copy=True))
    return shards


def _encoder_rates(settings: Settings) -> tuple[float, float]:
    options, base = settings[FullOptions], settings[OptimizerOptions].learning_rate
    first, second = options.learning_rate_te1, options.learning_rate_te2
    return (base if first is None else first, base if second is None else second)


@torch.no_grad()
def _collect(weights: Iterable[Weight]) -> None:
    """Add the copies' gradients to those of the masters, and clear them."""
    for weight in weights:
        gradient = weight.copy.grad
        if weight.master is None or gradient is None:
            continue
        if weight.master.grad is None:
            weight.master.grad = gradient.float()
        else:
            weight.master.grad.add_(gradient)
        weight.copy.grad = None


def _grad_norm(gradients: list[Tensor], device: torch.device) -> Tensor:
    """Return the norm of all gradients together, float32 ()."""
    if not gradients:
        return torch.zeros((), device=device)
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2, torch.float32)))


def _clip_factor(norm: Tensor, limit: float) -> Tensor:
    """Return the factor that clips gradients of this norm to `limit`; 0 if the norm is non-finite."""
    return (limit / (norm + 1e-6)).clamp_max(1.0).where(norm.isfinite(), 0.0)


def _collect_shard_gradients(weights: Iterable[Weight]) -> None:
    """Add the gradients that backward left in shards to those of this process's rows."""
    for weight in weights:
        if weight.sharded is None or not isinstance(weight.sharded.grad, DTensor):
            continue
        rows, weight.sharded.grad = weight.sharded.grad.to_local(), None
        weight.copy.grad = rows if weight.copy.grad is None else weight.copy.grad.add_(rows)


def _gradients(weights: Iterable[Weight]) -> list[Tensor]:
    """Return all gradients that exist, on masters or copies."""
    found = (w.copy.grad if w.learned.grad is None else w.learned.grad for w in weights)
    return [gradient for gradient in found if gradient is not None]


@torch.no_grad()
def _refresh(weights: Iterable[Weight]) -> None:
    pairs = [(weight.copy, weight.master) for weight in weights if weight.master is not None]
    if pairs:
        copies, masters = zip(*pairs, strict=True)
        torch._foreach_copy_(list(copies), list(masters))


def _clear_gradients(weights: Iterable[Weight]) -> None:
    for weight in weights:
        weight.copy.grad = weight.learned.grad = None


def _average(gradients: list[Tensor], processes: int) -> None:
    """Average the gradients in few all-reduces; all processes have gradients for the same weights."""
    bucket: list[Tensor] = []
    size = 0
    for gradient in gradients:
        bucket.append(gradient)
        size += gradient.numel() * gradient.element_size()
        if size >= BUCKET:
            _average_together(bucket, processes)
            bucket, size = [], 0
    _average_together(bucket, processes)


def _average_together(gradients: list[Tensor], processes: int) -> None:
    if gradients:
        GradientAverage(gradients, processes).finish()
