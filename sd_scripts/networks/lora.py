"""LoRA: the layers that it adapts and the float32 masters that the optimizer trains.

The layers (see layers.py) compute in the model's dtype. `LoraNetwork` keeps masters and compute copies in flat buffers,
so that refreshing the copies is one cast a step and the gradient norm is one reduction. Paper: Hu et al. 2021,
https://arxiv.org/abs/2106.09685. Keys in files are those of sd-scripts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sd_scripts.networks.args import Warn
from sd_scripts.networks.layers import Dropouts, LoraConv2d, LoraLayer, LoraLinear, SplitLoraLinear
from sd_scripts.networks.perturbation import Perturbation, RowNoise
from sd_scripts.networks.rules import Rules
from sd_scripts.options.network_args import NetworkArguments
from sd_scripts.options.settings import Groups


@dataclass(frozen=True, kw_only=True)
class LoraTarget:
    """Which layers of a module LoRA adapts, and their names in files."""

    classes: tuple[str, ...]
    """Every Linear and 1x1 convolution inside modules of these classes."""
    conv_classes: tuple[str, ...] = ()
    """With conv_dim, also every layer inside modules of these classes."""
    name: Callable[[str], str]
    """Module path -> name in the file: `lora_unet_input_blocks_4_1_proj_in`."""
    alias: Callable[[str], str] | None = None
    """Module path -> its name in other programs: `lora_unet_down_blocks_1_attentions_0_proj_in`. Read, not written."""
    diffusers_paths: Callable[[str], tuple[str, ...]] | None = None
    """Module path -> its diffusers modules, in the order of its rows. Read, not written."""
    class_aliases: Mapping[str, str] = field(default_factory=dict)
    """Class of a module -> its name in external networks, which select modules by class name."""
    group: str = "unet"
    """Name of the module's learning rate in logs: `unet`, `textencoder 1`."""
    extra_modules: tuple[str, ...] = ()
    """Paths of further modules, outside `classes`, whose layers can be adapted."""
    options: Groups = ()
    """Option groups of the family whose options are also accepted in network_args."""
    rules: Callable[[NetworkArguments, Warn], Rules] = lambda arguments, warn: Rules()
    """network_args -> the family's rules for each layer. The denoiser's rules apply to all modules."""


def adaptable(model: nn.Module, target: LoraTarget, *, conv: bool) -> Iterator[tuple[str, nn.Linear | nn.Conv2d]]:
    """Yield path and layer of everything that LoRA can adapt in `model`, in module order, each once."""
    seen = set()
    for inside, block in model.named_modules():
        kind = type(block).__name__
        if kind not in target.classes and not (conv and kind in target.conv_classes):
            continue
        for path, layer in block.named_modules(prefix=inside):
            if path in seen or not isinstance(layer, nn.Linear | nn.Conv2d):
                continue
            if not is_conv(layer) or conv:
                seen.add(path)
                yield path, layer
    for outside in target.extra_modules:
        for path, layer in model.named_modules():
            if f"{path}.".startswith(f"{outside}.") and isinstance(layer, nn.Linear):
                yield path, layer


def is_conv(layer: nn.Module) -> bool:
    """Return whether it is a convolution with a kernel above 1x1; a 1x1 convolution counts as a Linear."""
    return isinstance(layer, nn.Conv2d) and layer.kernel_size != (1, 1)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One layer's LoRA tensors as stored in a file."""

    down: Tensor
    up: Tensor
    alpha: float

    @property
    def rank(self) -> int:
        return self.down.shape[0]

    def is_split(self, split_dims: Sequence[int]) -> bool:
        """Return whether each split of the output uses only its own share of the rank."""
        if self.rank % len(split_dims) or sum(split_dims) != self.up.shape[0]:
            return False
        own = torch.block_diag(*(torch.ones(piece, self.rank // len(split_dims)) for piece in split_dims))
        return not self.up[own.to(self.up.device) == 0].any()


def read_pair(tensors: Mapping[str, Tensor], name: str) -> Pair | None:
    """Return the layer `name` of a LoRA file, or None; a missing or zero alpha means the rank."""
    down, up = (tensors.get(f"{name}.lora_{part}.weight") for part in ("down", "up"))
    if down is None or up is None:
        return None
    alpha = tensors.get(f"{name}.alpha")
    return Pair(down=down, up=up, alpha=(0.0 if alpha is None else float(alpha)) or float(down.shape[0]))


class Group(NamedTuple):
    """Layers that share a learning rate."""

    name: str
    """As in logs: `unet`, `textencoder 1`, `unet_block4`."""
    lr: float
    plus: float | None = None
    """LoRA+ ratio: learning rate of the up matrices relative to the downs."""


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """How to adapt one layer."""

    name: str
    module: nn.Module
    path: str
    rank: int
    alpha: float
    group: Group
    split_dims: tuple[int, ...] = ()
    """Output sizes of splits that each get their own LoRA of this rank and alpha; () means one for all."""


@dataclass
class AdaptedLayer:
    """One layer with its float32 masters; `scale` is alpha / rank.

    With `split_dims`, down is (n·r, in) and up is (out, r). The file holds one pair of rank n·r with a block-diagonal
    up and n times the alpha, so that alpha / rank is unchanged.
    """

    name: str
    layer: LoraLayer
    down: nn.Parameter
    up: nn.Parameter
    alpha: float
    group: Group
    split_dims: tuple[int, ...] = ()

    @property
    def split_count(self) -> int:
        return len(self.split_dims) or 1

    @property
    def rank(self) -> int:
        return self.down.shape[0] // self.split_count

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def pairs(self, down: Tensor, up: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return down (r, in) and up (out, r) of each split, from matrices shaped like the masters."""
        if not self.split_dims:
            return [(down.flatten(1), up.flatten(1))]
        return list(zip(down.chunk(self.split_count), up.split(self.split_dims), strict=True))

    def pair(self) -> Pair:
        """Return the layer as stored in a file."""
        down, up = self.down.detach(), self.up.detach()
        if self.split_dims:
            up = torch.block_diag(*up.split(self.split_dims))
        return Pair(down=down, up=up, alpha=self.alpha * self.split_count)

    @torch.no_grad()
    def load_pair(self, pair: Pair) -> None:
        """Load the weights of `pair`; if its alpha differs, up is scaled to compensate.

        Raises ValueError if a rank or a width differs.
        """
        ours = self.rank * self.split_count
        if pair.rank != ours:
            raise ValueError(
                f"network_weights: {self.name} has rank {pair.rank} in the file and {ours} here; "
                "set network_dim to the file's rank or turn on dim_from_weights"
            )
        if pair.down.numel() != self.down.numel() or pair.up.numel() != self.up.numel() * self.split_count:
            raise ValueError(
                f"network_weights: {self.name} has a different shape in the file than in this model; "
                "choose a LoRA of the same kind of model"
            )
        up = pair.up
        if self.split_dims:
            if not pair.is_split(self.split_dims):
                raise ValueError(
                    f"network_weights: {self.name} is not split in the file; turn split_qkv off or choose a file "
                    "that was trained with it"
                )
            up = torch.cat(
                [rows[:, i * self.rank : (i + 1) * self.rank] for i, rows in enumerate(up.split(self.split_dims))]
            )
        self.down.copy_(pair.down.reshape(self.down.shape))
        self.up.copy_(up.reshape(self.up.shape)).mul_(pair.alpha / (self.alpha * self.split_count))


@dataclass(frozen=True, kw_only=True)
class _Segment:
    """A run of the flat buffers with one scale: the downs have 1, the ups alpha / rank."""

    run: slice
    scale: float
    is_up: bool


@dataclass
class LoraNetwork:
    """All adapted layers of a run, with their masters and compute copies."""

    layers: list[AdaptedLayer]
    masters: Tensor
    """(n,) float32: every down, then every up. The optimizer's parameters are views of it."""
    compute: Tensor
    """(n,) in the model's dtype. The layers' parameters are views of it."""
    segments: list[_Segment]
    copies: list[nn.Parameter]
    """The layers' parameters in buffer order."""
    multiplier: float = 1.0
    """Strength of the whole network; call `refresh` after changing it."""
    row_noise: RowNoise | None = None

    def __post_init__(self) -> None:
        self.gradients = torch.zeros_like(self.masters)
        """(n,) float32, one buffer, so that processes average it in one all-reduce. Its memory is freed between
        zero_grad and the next collect_gradients, because the memory peak of a step comes before the first
        gradient is ready."""
        self._gradient_views = self._views_of(self.gradients)
        views = dict(zip(self.copies, self._gradient_views, strict=True))
        for layer in self.layers:
            layer.down.grad, layer.up.grad = views[layer.layer.lora_down], views[layer.layer.lora_up]
        self._gradient_bytes = self.gradients.untyped_storage().nbytes()
        self._collected = True
        self.zero_grad()

    def _views_of(self, flat: Tensor) -> list[Tensor]:
        runs = flat.split([copy.numel() for copy in self.copies])
        return [run.view(copy.shape) for run, copy in zip(runs, self.copies, strict=True)]

    @torch.no_grad()
    def refresh(self) -> None:
        """Write the compute copies from the masters, with each layer's scale in its up matrix."""
        for part in self.segments:
            factor = self._factor(part)
            if factor == 1.0:
                self.compute[part.run].copy_(self.masters[part.run])
            else:
                torch.mul(self.masters[part.run], factor, out=self.compute[part.run])

    def _factor(self, part: _Segment) -> float:
        return part.scale * self.multiplier if part.is_up else 1.0

    def freeze(self, parameters: Iterable[nn.Parameter]) -> None:
        """Freeze these masters: they get no gradient, so they are not trained and do not count in its norm."""
        frozen = {id(parameter) for parameter in parameters}
        for layer in self.layers:
            layer.layer.lora_down.requires_grad_(id(layer.down) not in frozen)
            layer.layer.lora_up.requires_grad_(id(layer.up) not in frozen)

    @torch.no_grad()
    def collect_gradients(self) -> None:
        """Move the gradients of the compute copies to the masters, adding to what earlier micro-steps left there."""
        if not self._collected:
            self.gradients.untyped_storage().resize_(self._gradient_bytes)
        target, views = self.gradients, self._gradient_views
        if self._collected:  # a later micro-step of an accumulation
            target = torch.empty_like(self.gradients)
            views = self._views_of(target)
        pairs = [(view, copy.grad) for view, copy in zip(views, self.copies, strict=True)]
        reached = [(view, grad) for view, grad in pairs if grad is not None]
        if reached:
            torch._foreach_copy_([view for view, _ in reached], [grad for _, grad in reached])
        if len(reached) < len(
            pairs
        ):  # parameters that do not affect the loss, such as the last layer of a text encoder
            torch._foreach_zero_([view for view, grad in pairs if grad is None])
        for part in self.segments:
            if (factor := self._factor(part)) != 1.0:
                target[part.run].mul_(factor)
        if target is not self.gradients:
            self.gradients.add_(target)
        self._collected = True
        for copy in self.copies:
            copy.grad = None

    def perturb(self) -> None:
        """Set the noise of the next steps; call after an update, while its gradients exist."""
        if self.row_noise and self._collected:
            self.row_noise.update()

    def zero_grad(self) -> None:
        """Drop the masters' gradients and free their memory."""
        if self._collected:
            self.gradients.untyped_storage().resize_(0)
        self._collected = False

    @torch.no_grad()
    def limit_norms(self, limit: float) -> tuple[Tensor, Tensor, Tensor]:
        """Scale down pairs whose update norm exceeds `limit` (scale_weight_norms).

        Returns how many were scaled and the mean and maximum norm afterwards, as tensors on the device.
        """
        norms = torch.stack([self._update_norm(layer) for layer in self.layers])
        ratio = (limit / norms.clamp_min(limit / 2)).clamp_max(1.0)
        for layer, share in zip(self.layers, ratio.sqrt().unbind(), strict=True):
            layer.down.mul_(share)
            layer.up.mul_(share)
        kept = norms * ratio
        return (ratio < 1).sum(), kept.mean(), kept.max()

    @staticmethod
    def _update_norm(layer: AdaptedLayer) -> Tensor:
        """Return the norm of up @ down without forming it: |UD|^2 = trace(U'U DD')."""
        pairs = layer.pairs(layer.down, layer.up)
        square = torch.stack([((up.t() @ up) * (down @ down.t())).sum() for down, up in pairs]).sum()
        return square.clamp_min(0).sqrt() * layer.scale

    def file_tensors(self, dtype: torch.dtype | None) -> dict[str, Tensor]:
        """Return the file's tensors: masters on the CPU in `dtype` (None: unchanged), under sd-scripts' keys."""
        dtype = dtype or self.masters.dtype
        tensors: dict[str, Tensor] = {}
        for layer in self.layers:
            pair = layer.pair()
            tensors[f"{layer.name}.alpha"] = torch.tensor(pair.alpha, dtype=dtype)
            tensors[f"{layer.name}.lora_down.weight"] = pair.down.to("cpu", dtype, copy=True)
            tensors[f"{layer.name}.lora_up.weight"] = pair.up.to("cpu", dtype, copy=True)
        return tensors

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Load weights from a file's tensors; return the names of layers missing from the file.

        Raises ValueError if a rank or a width differs.
        """
        absent = []
        for layer in self.layers:
            pair = read_pair(tensors, layer.name)
            if pair is None:
                absent.append(layer.name)
                continue
            layer.load_pair(pair)
        return absent


def attach(
    plans: Iterable[LayerPlan],
    dropouts: Dropouts,
    generator: torch.Generator,
    masters_dtype: torch.dtype = torch.float32,
    *,
    perturbation: Perturbation | None = None,
    device: torch.device | None = None,
) -> LoraNetwork:
    """Replace the planned layers with adapted ones: down starts random (Kaiming uniform), up at zero.

    `device` is where steps compute; None: the device of the weights.
    """
    made: list[tuple[LayerPlan, LoraLayer]] = []
    for plan in plans:
        parent_path, _, leaf = plan.path.rpartition(".")
        parent = plan.module.get_submodule(parent_path)
        base = getattr(parent, leaf)
        layer = _adapted(base, plan, dropouts)
        setattr(parent, leaf, layer)
        made.append((plan, layer))
    assert made, "a network without layers"
    network = _with_masters(made, generator, masters_dtype, device or made[0][1].weight.device)
    if perturbation:
        network.row_noise = RowNoise(perturbation, network.layers, network.masters.device)
    return network


def _adapted(base: nn.Module, plan: LayerPlan, dropouts: Dropouts) -> LoraLayer:
    if isinstance(base, nn.Conv2d):
        return LoraConv2d(base, plan.rank, dropouts)
    assert isinstance(base, nn.Linear)
    if plan.split_dims:
        return SplitLoraLinear(base, plan.rank, dropouts, plan.split_dims)
    return LoraLinear(base, plan.rank, dropouts)


@torch.no_grad()
def _with_masters(
    made: list[tuple[LayerPlan, LoraLayer]],
    generator: torch.Generator,
    masters_dtype: torch.dtype,
    device: torch.device,
) -> LoraNetwork:
    dtype = made[0][1].lora_down.dtype
    assert all(layer.lora_down.dtype == dtype for _, layer in made), "modules compute in different dtypes"
    by_scale = sorted(made, key=lambda pair: pair[0].alpha / pair[0].rank)  # ups of one scale become one segment
    order = [(layer.lora_down, (1.0, False)) for _, layer in made]
    order += [(layer.lora_up, (plan.alpha / plan.rank, True)) for plan, layer in by_scale]
    total = sum(copy.numel() for copy, _ in order)
    masters = torch.zeros(total, device=device, dtype=masters_dtype)
    compute = torch.zeros(total, device=device, dtype=dtype)

    master_of: dict[nn.Parameter, nn.Parameter] = {}
    segments, start = [], 0
    for (scale, is_up), run in groupby(order, key=lambda item: item[1]):
        begin = start
        for copy, _ in run:
            end = start + copy.numel()
            master_of[copy] = nn.Parameter(masters[start:end].view(copy.shape))
            copy.data = compute[start:end].view(copy.shape)
            start = end
        segments.append(_Segment(run=slice(begin, start), scale=scale, is_up=is_up))

    layers = []
    for plan, layer in made:
        down, up = master_of[layer.lora_down], master_of[layer.lora_up]
        bound = 1 / math.sqrt(down[0].numel())  # Kaiming uniform with a = sqrt(5)
        down.copy_(torch.empty(down.shape).uniform_(-bound, bound, generator=generator))
        layers.append(AdaptedLayer(plan.name, layer, down, up, plan.alpha, plan.group, plan.split_dims))
    network = LoraNetwork(layers, masters, compute, segments, list(master_of))
    network.refresh()
    return network
