"""Stochastic rounding of float32 values to half precision.

Rounded to nearest, a bf16 weight near 1 ignores updates below 1/512, and a second moment with beta2 = 0.999 can never
decrease. Rounded up or down at random, with the nearer value more likely, both are right on average
(Zamirai et al. 2020, https://arxiv.org/abs/2010.06192).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sd_scripts.library.kernels.triton_kernels import built_for
from sd_scripts.library.seeds import seed_from


class Key(NamedTuple):
    """Identifies a rounding, so that it draws the same bits in every process and in a resumed run."""

    seed: int
    """63 bits."""
    step: int
    number: int
    """Index of the parameter."""
    part: int = 0
    """0: the value, 1: its first moment, 2: its second moment."""

    def generator(self, device: torch.device) -> torch.Generator:
        return torch.Generator(device).manual_seed(seed_from(*self))


class _HalfFormat(NamedTuple):
    """How a half-precision format maps into float32."""

    dropped: int
    """Mantissa bits that it lacks."""
    lowest: float
    """Smallest magnitude with the full mantissa."""
    end: float
    """Magnitudes from here on are not rounded stochastically."""


_HALF_FORMATS = {
    torch.bfloat16: _HalfFormat(dropped=16, lowest=0.0, end=float("inf")),
    torch.float16: _HalfFormat(dropped=13, lowest=2.0**-14, end=65504.0),
}


@torch.no_grad()
def round_stochastically(source: Tensor, target: Tensor, key: Key) -> None:
    """Round float32 `source` stochastically into `target` of the same shape: each value becomes one of its two
    neighbours, with the nearer one more likely, so that the mean is right.

    NaN, infinity, fp16 subnormals and values beyond the range are rounded to nearest; a float32 target gets a copy.
    """
    if target.dtype == torch.float32:
        target.copy_(source)
    elif (kernels := kernels_on(source.device)) and same_layout(source, target):
        kernels.round_stochastically(source, target, key)
    else:
        half = _HALF_FORMATS[target.dtype]
        generator = key.generator(source.device)
        bits = torch.randint(
            1 << half.dropped, source.shape, generator=generator, device=source.device, dtype=torch.int32
        )
        moved = bits.add_(source.view(torch.int32)).bitwise_and_(-1 << half.dropped).view(torch.float32)
        size = source.abs()
        target.copy_(torch.where((size >= half.lowest) & (size < half.end), moved, source))


def same_layout(first: Tensor, *others: Tensor | None) -> bool:
    """Return whether tensors of one shape are dense and share their memory order."""
    if first.is_contiguous():
        return all(other is None or other.is_contiguous() for other in others)
    dense = first.ndim == 4 and first.is_contiguous(memory_format=torch.channels_last)
    return dense and all(other is None or other.stride() == first.stride() for other in others)


@cache
def kernels_on(device: torch.device) -> Any:
    """Return the kernel module for this device, or None to use plain PyTorch."""
    values = torch.zeros(1, device=device)
    return built_for(
        device,
        "sd_scripts.library.optim.rounding_kernels",
        lambda kernels: kernels.round_stochastically(values, values.bfloat16(), Key(0, 0, 0)),
        "the updates of AdamW take longer",
    )
