"""Frozen weights in 4 bits: NF4 of bitsandbytes, 16 values with a scale for every 64 of them.

Dettmers et al. 2023, QLoRA, https://arxiv.org/abs/2305.14314; scales stay in float32 (no double quantization).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sd_scripts.library.quantization.quantized import SCALE, WeightFormat, define_product
from sd_scripts.library.streams import waiting_for_default_stream

BLOCK = 64
"""Values that share a scale."""
PER_BYTE = 2


class Nf4(WeightFormat):
    """(out, in / 2) uint8, two values in each, and (out * in / BLOCK,) float32 scales."""

    def quantize(self, weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        import bitsandbytes  # noqa: F401  # takes seconds; it defines the operators

        values = (weight if weight.element_size() > 1 else weight.float()).contiguous()
        with waiting_for_default_stream(values.device):
            packed, scale = torch.ops.bitsandbytes.quantize_4bit(values, BLOCK, "nf4", torch.uint8)
        return packed.view(len(weight), -1), {SCALE: scale}

    def dequantize(self, weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        return dequantized_blocks(weight, scale, dtype)

    def product(self, x: Tensor, layer: nn.Linear) -> Tensor:
        bias = None if layer.bias is None else layer.bias.to(x.dtype)
        return nf4_product(x, layer.weight, layer.weight_scale, bias)


def dequantized_blocks(packed: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """(out, in / 2) uint8, (out * in / BLOCK,) float32 -> (out, in)."""
    rows, columns = packed.shape
    # as one row: bitsandbytes on a CPU begins a new block with each row
    flat = torch.ops.bitsandbytes.dequantize_4bit(packed, scale, BLOCK, "nf4", [rows * columns * PER_BYTE], dtype)
    return flat.view(rows, columns * PER_BYTE)


nf4_product = define_product("nf4", dequantized_blocks, PER_BYTE)
