"""LoKr: the update is the Kronecker product of two matrices, w1 (p, q) x w2 (c, d) for a weight (p·c, q·d).

Yeh et al. 2023, https://arxiv.org/abs/2309.14859. Keys in files are LyCORIS'. Each of the two may be the
product of two matrices of rank r: w2 where the rank is below half its size, w1 with `decompose_both`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.formats.models.lora_keys import ALPHA, NORMS
from sd_scripts.library.kernels.folded_kronecker import folded_kronecker_product
from sd_scripts.library.kernels.kronecker import kronecker_product
from sd_scripts.networks.adapter import register
from sd_scripts.networks.folded.folding import FoldableLinear, Tail
from sd_scripts.networks.layers import Dropouts
from sd_scripts.networks.lokr_sizes import LokrSizes, can_fold
from sd_scripts.networks.update_adapter import Shapes, UpdateAdapter, kaiming_uniform
from sd_scripts.networks.updates import Axis, Update, UpdatedLinear, dense_weight, exact

W1, W1_A, W1_B = "lokr_w1", "lokr_w1_a", "lokr_w1_b"
W2, W2_A, W2_B, T2 = "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2"


class KroneckerUpdate(Update):
    """w1 x w2, where w2 of a convolution is (c, d · kh · kw) or (c, d, kh, kw)."""

    def w1(self) -> Tensor:
        whole = self.part(W1)
        if whole is not None:
            return whole
        a, b = self.parts(W1_A, W1_B)
        return a @ b

    def w2(self) -> Tensor:
        whole, core = self.part(W2), self.part(T2)
        if whole is not None:
            return whole
        a, b = self.parts(W2_A, W2_B)
        return a @ b.flatten(1) if core is None else torch.einsum("rshw,rc,sd->cdhw", core, a, b)

    def weight(self) -> Tensor:
        w1, w2 = self.w1(), self.w2()
        return torch.kron(w1.view(*w1.shape, *(1,) * (w2.ndim - 2)), w2.contiguous())  # einsum's is transposed

    def output(self, x: Tensor) -> Tensor:
        if self.part(W2) is None:
            return self._factored_output(x)
        return kronecker_product(x, self.w1(), self.w2())

    def _factored_output(self, x: Tensor) -> Tensor:
        """Apply w1 (p, q) x (up (c, r) · down (r, d)), (..., q·d) -> (..., p·c), with q·r values in between."""
        w1 = self.w1()
        up, down = self.parts(W2_A, W2_B)
        low = F.linear(x.unflatten(-1, (w1.shape[1], -1)), down)
        return F.linear(torch.einsum("pq,...qr->...pr", w1, low), up).flatten(-2)

    def overlap(self, layer: nn.Linear, axis: Axis) -> Tensor:
        w1, w2 = self.w1(), self.w2()
        blocks = dense_weight(layer).view(w1.shape[0], w2.shape[0], w1.shape[1], w2.shape[1])  # (p, c, q, d)
        dtype, products = exact(w1.dtype), blocks * w2[:, None]
        if axis == "out":
            return (products.sum(3, dtype=dtype) * w1[:, None]).sum(2).flatten()
        return (products.sum(1, dtype=dtype) * w1[:, :, None]).sum(0).flatten()

    def squares(self, axis: Axis) -> Tensor:
        over = 1 if axis == "out" else 0
        first, second = (w.to(exact(w.dtype)).square().sum(over) for w in (self.w1(), self.w2()))
        return (first[:, None] * second).flatten()


class LokrLinear(UpdatedLinear, FoldableLinear):
    """A LoKr whose w2 is a product up · down: compiled, it can compute as a LoRA (folded_kronecker.py)."""

    update: KroneckerUpdate
    fold_takes_memory = True

    @property
    def foldable(self) -> bool:
        plain = self.update.part(W1) is not None and self.update.part(W2_A) is not None
        return plain and self.magnitudes is None and can_fold(self.folded_rank, self.in_features)

    @property
    def folded_rank(self) -> int:
        w1, down = self.update.parts(W1, W2_B)
        return w1.shape[1] * len(down)

    def tails(self, down: Tensor, up: Tensor) -> Iterator[Tail]:
        w1, own_up, own_down = self.update.parts(W1, W2_A, W2_B)
        (p, q), rank = w1.shape, len(own_down)
        for i in range(q):
            ranks = slice(i * rank, (i + 1) * rank)
            yield Tail(own_down, down[ranks].chunk(q, dim=1)[i])
            for number, place in enumerate(up[:, ranks].chunk(p)):
                yield Tail(own_up, place, factor=(w1, number * q + i))

    def forward(self, x: Tensor) -> Tensor:
        return self.folded([self], x)[0] if self.is_folded(1) else super().forward(x)

    def fold_of(self, layers: Sequence[FoldableLinear], x: Tensor, **how: Any) -> list[Tensor]:
        own: Sequence[LokrLinear] = layers  # type: ignore[assignment]
        assert self.joint is not None
        parts = [[layer.update.parts(ending)[0] for layer in own] for ending in (W1, W2_A, W2_B)]
        return folded_kronecker_product(x, self.joint, self.bias, *parts, **how)

    @staticmethod
    def project_together(layers: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
        own: Sequence[LokrLinear] = layers  # type: ignore[assignment]
        if own[0].is_folded(len(own)):
            return own[0].folded(own, x, [layer.out_features for layer in own])
        return UpdatedLinear.project_together(layers, x)


@register
class Lokr(UpdateAdapter):
    kind = "lokr"
    endings = (W1, W1_A, W1_B, W2, W2_A, W2_B, T2, NORMS)
    forms = tuple((*first, *second) for first in ((W1,), (W1_A, W1_B)) for second in ((W2,), (W2_A, W2_B)))
    update_class = KroneckerUpdate
    scaled = (W2, W2_B)

    @classmethod
    def shapes(cls, weight: Tensor, rank: int, options: Mapping[str, Any]) -> Shapes:
        out, into, *kernel = weight.shape
        sizes = LokrSizes.of(out, into, rank, options)
        p, q, c, d = sizes.p, sizes.q, sizes.c, sizes.d
        shapes: Shapes = {W1: (p, q)} if sizes.whole_w1 else {W1_A: (p, rank), W1_B: (rank, q)}
        if sizes.whole_w2:
            return {**shapes, W2: (c, d, *kernel)}
        if options.get("tucker") and any(size > 1 for size in kernel):
            return {**shapes, T2: (rank, rank, *kernel), W2_A: (rank, c), W2_B: (rank, d)}
        return {**shapes, W2_A: (c, rank), W2_B: (rank, d * math.prod(kernel))}

    def make_layer(self, base: nn.Linear | nn.Conv2d, dropouts: Dropouts) -> nn.Module:
        if isinstance(base, nn.Linear):
            return LokrLinear(base, self.update, dropouts, self.magnitudes)
        return super().make_layer(base, dropouts)

    @classmethod
    def rank_of(cls, parts: Mapping[str, Tensor]) -> int | None:
        down = parts.get(W2_B, parts.get(W1_B))
        return None if down is None else len(down)

    @classmethod
    def sizes_in_file(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int | None]:
        first = (W1,) if W1 in tensors else (W1_A, W1_B)
        second = (W2,) if W2 in tensors else (W2_A, W2_B, T2)
        if unused := sorted(tensors.keys() - {*first, *second, ALPHA, NORMS}):
            raise ValueError(f"{' and '.join(unused)} besides {' and '.join((first[0], second[0]))}, which are whole")
        return super().sizes_in_file(tensors)

    def start(self, ending: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor | None:
        return None if ending in (W2, W2_B) else kaiming_uniform(shape, generator)
