"""Singular value decompositions of LoRA updates: of a product of factors without forming it, or of a matrix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SMALL = 2048
"""Matrices with both sides above it are decomposed by iterations, as sd-scripts does."""
ZERO = 1e-6
"""A layer whose largest singular value does not exceed this has no effect, and gets rank 1."""


@dataclass(frozen=True)
class Singular:
    """left (out, n) · diag(values) · right (n, in); values (n,) fall."""

    left: Tensor
    values: Tensor
    right: Tensor

    def factors(self, rank: int) -> tuple[Tensor, Tensor]:
        """Return up (out, r), which takes the singular values, and down (r, in). Ranks that there are not are left
        out."""
        return self.left[:, :rank] * self.values[:rank], self.right[:rank]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: threads that meet after each of thousands of small products take longer than these."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def computing_device(name: str | None) -> torch.device:
    """Return the device that an option names, or the CPU. Raises ValueError, one sentence, if it is not there."""
    try:
        device = torch.device(name or "cpu")
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError):  # the latter if PyTorch was built without CUDA
        raise ValueError(f"device: '{name}' is not available here; leave it out to compute on the CPU") from None
    return device


def of_product(up: Tensor, down: Tensor) -> Singular:
    """Decompose up (out, r) · down (r, in), exactly and at the cost of r x r matrices."""
    left, upper = torch.linalg.qr(up.float())
    right, lower = torch.linalg.qr(down.float().T)
    inner, values, outer = torch.linalg.svd(upper @ lower.T, full_matrices=False)
    return Singular(left @ inner, values, outer @ right.T)


def of_matrix(matrix: Tensor, rank: int, iterations: int) -> Singular:
    """Decompose a matrix (out, in); of a large one only about the first `rank` values, unless `iterations` is 0."""
    if not iterations or min(matrix.shape) <= SMALL:
        return Singular(*torch.linalg.svd(matrix.float(), full_matrices=False))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        left, values, right = torch.svd_lowrank(matrix.float(), q=min(2 * rank, *matrix.shape), niter=iterations)
    return Singular(left, values, right.T)


def choose_rank(values: Tensor, method: str | None, target: float, most: int) -> int:
    """Return how many of the singular values (n,) a method keeps, at most `most`.

    `sv_ratio`: those above the largest divided by `target`. `sv_fro`: the fewest that have this share of the Frobenius
    norm; `sv_cumulative`: of their sum. None: all.
    """
    if values[0] <= ZERO:
        return 1
    if method == "sv_ratio":
        rank = int((values > values[0] / target).sum())
    elif method in ("sv_fro", "sv_cumulative"):
        squares = method == "sv_fro"
        parts = values.square() if squares else values
        share = target**2 if squares else target
        rank = int(torch.searchsorted(parts.cumsum(0) / parts.sum(), share)) + 1
    else:
        rank = most
    return max(1, min(rank, most, len(values)))


def clamp(up: Tensor, down: Tensor, quantile: float) -> tuple[Tensor, Tensor]:
    """Limit both factors to the quantile of all their values, as sd-scripts does; 1 leaves them."""
    if quantile >= 1:
        return up, down
    both = torch.cat([up.flatten(), down.flatten()]).cpu().numpy()
    limit = float(np.quantile(both, quantile))  # torch.quantile takes 16 million values at most
    return up.clamp(-limit, limit), down.clamp(-limit, limit)
