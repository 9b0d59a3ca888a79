"""LoRA, and LoCon for convolutions: a layer's update is the product of two small matrices, up · down.

Hu et al. 2021, https://arxiv.org/abs/2106.09685. Keys in files are sd-scripts'.

It starts from values that are random, or that come from the base weight and train faster at first. PiSSA, Meng et al.
2024, https://arxiv.org/abs/2404.02948: the largest singular vectors. OLoRA, Büyükakyüz 2024,
https://arxiv.org/abs/2406.01775: the first columns of an orthonormal basis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.formats.models.lora_keys import DOWN, UP
from sd_scripts.library.kernels.folded_product import folded_product
from sd_scripts.library.quantization.quantized import updated_linear
from sd_scripts.networks.adapter import Adapter, LayerPlan, Tensors, TrainedTensor, file_alpha, register
from sd_scripts.networks.folded.folding import FoldableLinear, Tail
from sd_scripts.networks.layers import AdaptedConv2d, Dropouts
from sd_scripts.networks.updates import exact, stored_weight
from sd_scripts.options.networks.layer_rules import Rank

ITERATIONS = 4
"""Of the randomized decomposition, which takes seconds for a whole model; with 4 the vectors agree to 3 digits."""
EXTRA = 16
"""More vectors than are needed, which make the last of these exact."""


class LoraLinear(FoldableLinear):
    """y = x W + b + (x A) B, with alpha / rank already in B (see TrainedTensor.scale)."""

    lora_down: nn.Parameter  # (r, in)
    lora_up: nn.Parameter  # (out, r)

    def __init__(self, base: nn.Linear, rank: int, dropouts: Dropouts):
        super().__init__(base, dropouts)
        self.lora_down = self.parameter(rank, base.in_features)
        self.lora_up = self.parameter(base.out_features, rank)

    def forward(self, x: Tensor) -> Tensor:
        if self.is_folded(1):
            return self.folded([self], x)[0]
        if (y := self.in_one_kernel(x)) is not None:
            return y
        return self.update(self.base(x), F.linear(x, self.lora_down))

    def in_one_kernel(self, x: Tensor) -> Tensor | None:
        """Return the output, if one kernel computes the quantized base's and the LoRA's."""
        if not self.foldable or (self.training and (self.dropouts.any() or self.row_noise is not None)):
            return None
        return updated_linear(x, self, self.lora_down, self.lora_up)

    @property
    def folded_rank(self) -> int:
        return self.lora_down.shape[0]

    def tails(self, down: Tensor, up: Tensor) -> Iterator[Tail]:
        yield Tail(self.lora_down, down, moves=True)
        yield Tail(self.lora_up, up, moves=True)

    def fold_of(self, layers: Sequence[FoldableLinear], x: Tensor, **how: Any) -> list[Tensor]:
        own: Sequence[LoraLinear] = layers  # type: ignore[assignment]
        assert self.joint is not None
        downs, ups = [layer.lora_down for layer in own], [layer.lora_up for layer in own]
        return folded_product(x, self.joint, self.bias, downs, ups, **how)

    def update(self, y: Tensor, h: Tensor) -> Tensor:
        """Add the LoRA output of `h` (..., r) to the base's output `y` (..., out)."""
        if self.training and self.dropouts.any():
            h = self.dropouts(h)
        if torch.compiler.is_compiling():
            return y + F.linear(h, self.lora_up)  # the compiler fuses the sum with what follows
        flat = torch.addmm(y.flatten(0, -2), h.flatten(0, -2), self.lora_up.t())
        return torch.ops.aten._unsafe_view(flat, y.shape)  # with a view, later compiled blocks would need another graph

    @staticmethod
    def project_together(layers: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
        """Apply the layers to one input, with one matrix product for their down projections."""
        lora: Sequence[LoraLinear] = layers  # type: ignore[assignment]
        if lora[0].is_folded(len(lora)):
            return lora[0].folded(lora, x, [layer.out_features for layer in lora])
        if (first := lora[0].in_one_kernel(x)) is not None:
            return [first, *(layer(x) for layer in lora[1:])]
        low = F.linear(x, torch.cat([layer.lora_down for layer in lora]))
        parts = low.split([layer.lora_down.shape[0] for layer in lora], dim=-1)
        return [layer.update(layer.base(x), h) for layer, h in zip(lora, parts, strict=True)]


class SplitLoraLinear(LoraLinear):
    """A Linear whose output splits, such as q, k and v, each have their own LoRA.

    Split i uses rows i·r to (i + 1)·r of down (n·r, in); its rows of up (out, r) belong to its outputs.
    """

    foldable = False  # type: ignore[assignment]

    def __init__(self, base: nn.Linear, rank: int, dropouts: Dropouts, split_dims: tuple[int, ...]):
        super().__init__(base, rank, dropouts)
        assert sum(split_dims) == base.out_features, "split_dims must sum to the layer's outputs"
        self.split_dims = split_dims
        self.lora_down = self.parameter(len(split_dims) * rank, base.in_features)

    def update(self, y: Tensor, h: Tensor) -> Tensor:
        if self.training and self.dropouts.any():
            h = self.dropouts(h)
        lows, ups = h.chunk(len(self.split_dims), dim=-1), self.lora_up.split(self.split_dims)
        return y + torch.cat([F.linear(low, up) for low, up in zip(lows, ups, strict=True)], dim=-1)


class LoraConv2d(AdaptedConv2d):
    """y = conv(x) + up(down(x)): down has the base's kernel, stride and padding, up is 1x1."""

    lora_down: nn.Parameter  # (r, in, kh, kw)
    lora_up: nn.Parameter  # (out, r, 1, 1)

    def __init__(self, base: nn.Conv2d, rank: int, dropouts: Dropouts):
        super().__init__(base, dropouts)
        self.lora_down = nn.Parameter(base.weight.new_empty(rank, base.in_channels, *base.kernel_size))
        self.lora_up = nn.Parameter(base.weight.new_empty(base.out_channels, rank, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self._conv_forward(x, self.lora_down, None)
        if self.training and self.dropouts.any():
            h = self.dropouts(h.movedim(1, -1)).movedim(-1, 1)
        return super().forward(x) + F.conv2d(h, self.lora_up)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One layer's LoRA tensors as stored in a file."""

    down: Tensor
    up: Tensor
    alpha: float

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor]) -> Pair:
        return cls(down=tensors[DOWN], up=tensors[UP], alpha=file_alpha(tensors, len(tensors[DOWN])))

    @property
    def rank(self) -> int:
        return self.down.shape[0]

    def is_split(self, split_dims: Sequence[int]) -> bool:
        """Return whether each split of the output uses only its own share of the rank."""
        if self.rank % len(split_dims) or sum(split_dims) != self.up.shape[0]:
            return False
        own = torch.block_diag(*(torch.ones(piece, self.rank // len(split_dims)) for piece in split_dims))
        return not self.up.float()[own.to(self.up.device) == 0].any()


@register
class Lora(Adapter):
    """LoRA of one layer.

    With `split_dims`, down is (n·r, in) and up is (out, r). The file contains one pair of rank n·r with a
    block-diagonal up and n times the alpha, so that alpha / rank is unchanged.
    """

    kind = "lora"
    endings = (DOWN, UP)
    degree = 2
    splits = True

    def __init__(self, plan: LayerPlan, base: nn.Module, dropouts: Dropouts):
        super().__init__(plan, base, dropouts)
        self.split_dims = plan.split_dims
        self.split_count = len(plan.split_dims) or 1
        layer = self.layer = self._layer(base, dropouts)
        self.tensors = [TrainedTensor(copy=layer.lora_down)]
        self.tensors.append(TrainedTensor(copy=layer.lora_up, scale=self.scale, plus=True))
        self.perturbable = isinstance(layer, LoraLinear)

    @classmethod
    def for_layer(cls, layer: nn.Module, options: Mapping[str, Any]) -> type[Adapter]:
        """Return the kind that starts from the base weight, which convolutions do not."""
        started = options.get("start", "default") != "default" and isinstance(layer, nn.Linear)
        return StartedLora if started else cls

    def _layer(self, base: nn.Module, dropouts: Dropouts) -> LoraLinear | LoraConv2d:
        if isinstance(base, nn.Conv2d):
            return LoraConv2d(base, self.rank, dropouts)
        assert isinstance(base, nn.Linear)
        if self.split_dims:
            return SplitLoraLinear(base, self.rank, dropouts, self.split_dims)
        return LoraLinear(base, self.rank, dropouts)

    @property
    def down(self) -> nn.Parameter:
        return self.masters[0]

    @property
    def up(self) -> nn.Parameter:
        return self.masters[1]

    def initialize(self, generator: torch.Generator) -> None:
        """Fill down like a layer of torch (Kaiming uniform with a = sqrt(5)); up stays 0."""
        bound = 1 / math.sqrt(self.down[0].numel())
        self.down.copy_(torch.empty(self.down.shape).uniform_(-bound, bound, generator=generator))

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

    def file_tensors(self) -> Tensors:
        pair = self.pair()
        return {"alpha": torch.tensor(pair.alpha, dtype=torch.float64), DOWN: pair.down, UP: pair.up}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a file's pair; if its alpha differs, up is scaled to compensate."""
        pair, ours = Pair.read(tensors), self.rank * self.split_count
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
                    f"network_weights: {self.name} is not split in the file; turn {self.plan.split_option} off or "
                    "choose a file that was trained with it"
                )
            up = torch.cat(
                [rows[:, i * self.rank : (i + 1) * self.rank] for i, rows in enumerate(up.split(self.split_dims))]
            )
        self.down.copy_(pair.down.reshape(self.down.shape))
        self.up.copy_(up.reshape(self.up.shape)).mul_(pair.alpha / (self.alpha * self.split_count))

    @classmethod
    def rank_in_file(cls, tensors: Mapping[str, Tensor], split_dims: tuple[int, ...]) -> tuple[Rank, tuple[int, ...]]:
        pair = Pair.read(tensors)
        split_dims = split_dims if split_dims and pair.is_split(split_dims) else ()
        count = len(split_dims) or 1
        return Rank(pair.rank // count, pair.alpha / count), split_dims

    @classmethod
    def sizes_in_file(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int | None]:
        down, up = tensors[DOWN], tensors[UP]
        if down.ndim not in (2, 4) or up.ndim not in (2, 4) or up[0, 0].numel() != 1 or up.shape[1] != len(down):
            raise ValueError(f"{DOWN} of {tuple(down.shape)} and {UP} of {tuple(up.shape)}, which do not fit together")
        return len(up), down[0].numel()

    @classmethod
    def delta(cls, tensors: Mapping[str, Tensor], weight: Tensor, strength: float = 1.0) -> Tensor:
        pair = Pair.read(tensors)
        down, up = (part.to(weight.device).float().flatten(1) for part in (pair.down, pair.up))
        return (up @ down) * (strength * pair.alpha / pair.rank)

    def norm(self) -> Tensor:
        """Return the norm of up @ down without forming it: |UD|^2 = trace(U'U DD')."""
        pairs = self.pairs(self.down, self.up)
        square = torch.stack([((up.t() @ up) * (down @ down.t())).sum() for down, up in pairs]).sum()
        return square.clamp_min(0).sqrt() * self.scale

    def row_squares(self) -> tuple[Tensor, Tensor]:
        assert self.down.grad is not None
        assert self.up.grad is not None
        pairs = self.pairs(self.down, self.up)
        slopes = self.pairs(self.down.grad, self.up.grad)
        learned = torch.cat([_row_squares(up, down) for down, up in pairs])
        steep = [
            _row_squares(torch.cat((up, up_slope), dim=1), torch.cat((down_slope, down)))
            for (down, up), (down_slope, up_slope) in zip(pairs, slopes, strict=True)
        ]
        return learned, torch.cat(steep)


def _row_squares(up: Tensor, down: Tensor) -> Tensor:
    """Return (out,): squared norms of the rows of up (out, r) · down (r, in), without forming it."""
    return ((up @ (down @ down.t())) * up).sum(dim=1).clamp_min(0)


def pissa(weight: Tensor, rank: int, scale: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return up (out, r) and down (r, in) whose product times `scale` is the best approximation of the weight."""
    weight = _repeatable(weight)
    devices = [weight.device] if weight.is_cuda else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        count = min(rank + EXTRA, *weight.shape)
        left, values, right = torch.svd_lowrank(weight, q=count, niter=ITERATIONS)
    roots = (values[:rank] / scale).sqrt()
    return left[:, :rank] * roots, (right[:, :rank] * roots).t()


def olora(weight: Tensor, rank: int, scale: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return up (out, r), the first columns of the weight's QR decomposition, and down (r, in), the rows for them."""
    basis, _ = torch.linalg.qr(_repeatable(weight[:, :rank]))
    basis = basis.to(weight.device)
    return basis, basis.t() @ weight


def _repeatable(weight: Tensor) -> Tensor:
    """Return a weight where it is decomposed: with `deterministic` on the CPU, since a GPU's last bits vary."""
    return weight.cpu() if torch.are_deterministic_algorithms_enabled() else weight


STARTS: dict[str, Callable[[Tensor, int, float, torch.Generator], tuple[Tensor, Tensor]]] = {
    "pissa": pissa,
    "olora": olora,
}


class StartedLoraLinear(LoraLinear):
    """A LoRA that starts from values of its base weight: y = x W + b + x (A B - A0 B0), so that W stays unchanged."""

    foldable = False  # type: ignore[assignment]
    first_down: Tensor  # (r, in)
    first_up: Tensor  # (out, r), times -alpha / rank

    def __init__(self, base: nn.Linear, rank: int, dropouts: Dropouts):
        super().__init__(base, rank, dropouts)
        self.register_buffer("first_down", torch.zeros_like(self.lora_down), persistent=False)
        self.register_buffer("first_up", torch.zeros_like(self.lora_up), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h, first = F.linear(x, torch.cat((self.lora_down, self.first_down))).chunk(2, dim=-1)
        if self.training and self.dropouts.any():
            h = self.dropouts(h)
        return self.base(x) + F.linear(torch.cat((h, first), dim=-1), torch.cat((self.lora_up, self.first_up), dim=1))

    @staticmethod
    def project_together(layers: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
        return [layer(x) for layer in layers]


class StartedLora(Lora):
    """LoRA of a Linear that starts by PiSSA or OLoRA. Its file has twice the rank: its current values minus the
    initial ones, so that it is for the unchanged base model."""

    first: tuple[Tensor, Tensor]
    """Down and up at the start."""

    def __init__(self, plan: LayerPlan, base: nn.Module, dropouts: Dropouts):
        super().__init__(plan, base, dropouts)
        self.perturbable = False

    def _layer(self, base: nn.Module, dropouts: Dropouts) -> LoraLinear | LoraConv2d:
        assert isinstance(base, nn.Linear)
        if self.split_dims:
            raise ValueError(f"lora_init: {self.name} is split; turn {self.plan.split_option} off or leave it unset")
        return StartedLoraLinear(base, self.rank, dropouts)

    def initialize(self, generator: torch.Generator) -> None:
        weight = stored_weight(self.layer).to(self.down.device, exact(self.down.dtype))
        up, down = STARTS[self.plan.options["start"]](weight, self.rank, self.scale, generator)
        self.up[:, : up.shape[1]].copy_(up)
        self.down[: len(down)].copy_(down)
        self.start_from(self.down.detach().clone(), self.up.detach().clone())

    def start_from(self, down: Tensor, up: Tensor) -> None:
        """Set the values from which the update is measured."""
        self.first = (down, up)
        layer = self.layer
        assert isinstance(layer, StartedLoraLinear)
        layer.first_down.copy_(down)
        layer.first_up.copy_(up * -self.scale)

    def pair(self) -> Pair:
        down, up = self.first
        return Pair(
            down=torch.cat((self.down.detach(), down)),
            up=torch.cat((self.up.detach(), -up), dim=1),
            alpha=2 * self.alpha,
        )

    def norm(self) -> Tensor:
        pair = self.pair()
        square = ((pair.up.t() @ pair.up) * (pair.down @ pair.down.t())).sum()
        return square.clamp_min(0).sqrt() * self.scale
