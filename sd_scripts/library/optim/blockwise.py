"""Block-wise 8-bit quantization of optimizer states (Dettmers et al. 2022, https://arxiv.org/abs/2110.02861).

Each block of values is divided by its largest magnitude; the quotients become the nearest level of a map with as many
levels in each decade as it can have: few among small values, whose sizes vary most (https://arxiv.org/abs/1511.04561).
Levels, blocks and codes are bitsandbytes'.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 256
"""Values that share a scale."""
DECADES = 7
CELL_BITS = 7
"""Bits of the mantissa that distinguish the cells of `starts`."""
FIRST_EXPONENT = 127 - 23
"""Of the cells; everything below 2^-23 is nearest to 0."""
CELLS = (23 << CELL_BITS) + 1
"""The last one begins at 1."""


@cache
def levels(device: torch.device, *, signed: bool) -> Tensor:
    """Return the value of each code, (256,) float32, ascending: 0, 1, and the middles of 2^n equal parts of each decade
    from 1e-7 to 1, where n grows with the decade. With `signed` also the negative middles, of half as many parts."""
    values = [0.0, 1.0]
    for decade in range(DECADES):
        edges = torch.linspace(0.1, 1, 2 ** (decade if signed else decade + 1) + 1)
        middles = 10 ** (decade + 1 - DECADES) * ((edges[:-1] + edges[1:]) / 2)
        values += [*middles.tolist(), *(-middles if signed else middles[:0]).tolist()]
    return torch.tensor(sorted(values), device=device)


def thresholds(of_levels: Tensor) -> Tensor:
    """Return the largest value that is rounded to each level but the last, (255,)."""
    return (of_levels[1:] + of_levels[:-1]) / 2


def starts(of_levels: Tensor) -> Tensor:
    """Return how many thresholds lie below every value of a cell, uint8, (2 * CELLS,): cells of the values from 0 to 1,
    then cells of the negative values. The float32 values of a cell begin with the same bits, and a cell is so small
    that it contains at most one threshold."""
    first = (FIRST_EXPONENT << CELL_BITS) + torch.arange(CELLS + 1, device=of_levels.device, dtype=torch.int32)
    edges = (first << 23 - CELL_BITS).view(torch.float32)
    edges[0] = 0.0
    limits = thresholds(of_levels)
    positive = torch.bucketize(edges[:-1], limits)
    negative = torch.bucketize(-edges[1:], limits, right=True)
    return torch.cat([positive, negative]).to(torch.uint8)


def blocks_of(values: Tensor) -> int:
    return -(-values.numel() // BLOCK)


def quantize(values: Tensor, of_levels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes of float32 values, uint8 of their shape, and the scale of each block, (N,) float32."""
    blocks = F.pad(values.flatten(), (0, -values.numel() % BLOCK)).view(-1, BLOCK)
    absmax = blocks.abs().amax(1)
    scaled = blocks / absmax.where(absmax != 0, 1.0)[:, None]
    codes = torch.bucketize(scaled, thresholds(of_levels), out_int32=True).to(torch.uint8)
    return codes.flatten()[: values.numel()].view(values.shape), absmax


def dequantize(codes: Tensor, absmax: Tensor, of_levels: Tensor) -> Tensor:
    """Return the values that quantize has stored, float32 of the shape of `codes`."""
    scales = absmax.repeat_interleave(BLOCK)[: codes.numel()]
    return of_levels[codes.int()] * scales.view(codes.shape)
