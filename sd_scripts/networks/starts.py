"""Initial values of a LoRA that come from the base weight, which trains faster at first than random ones.

PiSSA, Meng et al. 2024, https://arxiv.org/abs/2404.02948: the largest singular vectors. OLoRA, Büyükakyüz 2024,
https://arxiv.org/abs/2406.01775: the first columns of an orthonormal basis.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ITERATIONS = 4
"""Of the randomized decomposition, which takes seconds for a whole model; with 4 the vectors agree to 3 digits."""
EXTRA = 16
"""More vectors than are needed, which make the last of these exact."""


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
