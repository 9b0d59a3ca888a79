"""LoHa: the update is the elementwise product of two low-rank matrices, (w1_a w1_b) * (w2_a w2_b).

FedPara, Hyeon-Woo et al. 2021, https://arxiv.org/abs/2108.06098. Keys in files are LyCORIS'. Its rank is up to
r²: at small ranks it is computed as a LoRA of that rank, whose matrices are all products of two columns or rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sd_scripts.formats.models.lora_keys import NORMS
from sd_scripts.library.kernels.hadamard_product import hadamard_product
from sd_scripts.networks.adapter import register
from sd_scripts.networks.update_adapter import Shapes, UpdateAdapter, normal
from sd_scripts.networks.updates import FactoredUpdate, UpdatedLinear

A1, B1, A2, B2 = "hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"
T1, T2 = "hada_t1", "hada_t2"


class HadamardUpdate(FactoredUpdate):
    """(a1 · b1) * (a2 · b2) with a (out, r) and b (r, in · kh · kw).

    In Tucker form each factor is t (r, r, kh, kw) with a (r, out) and b (r, in) on its sides.
    """

    @property
    def is_small(self) -> bool:
        """Whether three products at rank r² take less than forming the change and its gradient."""
        a, b = self.parts(A1, B1)
        return 3 * a.shape[1] ** 2 * (len(a) + b.shape[1]) <= len(a) * b.shape[1]

    def factors(self) -> tuple[Tensor, Tensor]:
        a1, b1, a2, b2 = self.parts(A1, B1, A2, B2)
        return (a1[:, :, None] * a2[:, None]).flatten(1), (b1[:, None] * b2[None]).flatten(0, 1)

    def weight(self) -> Tensor:
        a1, b1, a2, b2 = self.parts(A1, B1, A2, B2)
        if self.part(T1) is None:
            return (a1 @ b1) * (a2 @ b2)
        t1, t2 = self.parts(T1, T2)
        return _tucker(t1, a1, b1) * _tucker(t2, a2, b2)

    def output(self, x: Tensor) -> Tensor:
        return super().output(x) if self.is_small else hadamard_product(x, None, None, *self.parts(A1, B1, A2, B2))

    def add_to(self, layer: UpdatedLinear, x: Tensor) -> Tensor:
        plain = layer.weight.dtype == x.dtype and not (layer.training and layer.dropouts.any())
        if self.is_small or not plain:
            return super().add_to(layer, x)
        return hadamard_product(x, layer.weight, layer.bias, *self.parts(A1, B1, A2, B2))

    def convolve(self, x: Tensor, conv: nn.Conv2d) -> Tensor | None:
        return super().convolve(x, conv) if self.part(T1) is None and self.is_small else None


def _tucker(t: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.einsum("rshw,ro,si->oihw", t, a, b)


@register
class Loha(UpdateAdapter):
    kind = "loha"
    endings = (A1, B1, A2, B2, T1, T2, NORMS)
    forms = ((A1, B1, A2, B2),)
    update_class = HadamardUpdate
    scaled = (A2,)

    @classmethod
    def shapes(cls, weight: Tensor, rank: int, options: Mapping[str, Any]) -> Shapes:
        out, into, *kernel = weight.shape
        if options.get("tucker") and any(size > 1 for size in kernel):
            a, b, t = (rank, out), (rank, into), (rank, rank, *kernel)
            return {A1: a, B1: b, A2: a, B2: b, T1: t, T2: t}
        a, b = (out, rank), (rank, weight[0].numel())
        return {A1: a, B1: b, A2: a, B2: b}

    @classmethod
    def rank_of(cls, parts: Mapping[str, Tensor]) -> int | None:
        return len(parts[B1])

    def start(self, ending: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor | None:
        return None if ending == A2 else normal(shape, 1.0 if ending in (B1, B2) else 0.1, generator)
