"""Kernels for 8-bit weights: conversion to another dtype (see dequantizing.py), and transposition."""

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 2048
"""Values that a program writes at most, all of one row."""
TILE = 64


@triton.jit
def _rows(  # type: ignore[no-untyped-def]
    stored, scale, result, width, tiles, E4M3: tl.constexpr, SCALED: tl.constexpr, COLUMNS: tl.constexpr
):
    """Program i writes COLUMNS values of a row."""
    row = (tl.program_id(0) // tiles).to(tl.int64)
    column = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    value = tl.load(stored + row * width + column, mask=inside, other=0)
    if E4M3:  # spread over 16 bits it is float16, divided by 256; GPUs before RTX 40 do not support e4m3
        bits = value.to(tl.uint16)
        half = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)
        number = tl.where((bits & 0x7F) == 0x7F, float("nan"), half.to(tl.float32) * 256.0)
    else:
        number = value.to(tl.float32)
    if SCALED:
        number *= tl.load(scale + row)
    tl.store(result + row * width + column, number.to(result.dtype.element_ty), mask=inside)


def fill_rows(stored: Tensor, scale: Tensor | None, result: Tensor, *, e4m3: bool) -> None:
    """Fill result (M, K) with `stored` (M, K), int8 or, if `e4m3`, its bytes, times scale (M, 1) float32.

    All are contiguous.
    """
    rows, width = stored.shape
    columns = min(COLUMNS, triton.next_power_of_2(width))
    tiles = triton.cdiv(width, columns)
    _rows[(rows * tiles,)](
        *(stored, stored if scale is None else scale, result, width, tiles),
        E4M3=e4m3,
        SCALED=scale is not None,
        COLUMNS=columns,
        num_warps=4,
    )


@triton.jit
def _transpose(source, target, rows, columns, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    r = tl.program_id(0) * TILE + tl.arange(0, TILE)
    c = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (r[:, None] < rows) & (c[None, :] < columns)
    tile = tl.load(source + r[:, None] * columns + c[None, :], mask=inside)
    tl.store(target + c[:, None] * rows + r[None, :], tl.trans(tile), mask=tl.trans(inside))


def transposed_bytes(source: Tensor) -> Tensor:
    """(rows, columns) uint8, contiguous -> (columns, rows), about ten times as fast as a strided copy."""
    rows, columns = source.shape
    target = torch.empty(columns, rows, device=source.device, dtype=source.dtype)
    grid = (triton.cdiv(rows, TILE), triton.cdiv(columns, TILE))
    _transpose[grid](source, target, rows, columns, TILE=TILE)
    return target
