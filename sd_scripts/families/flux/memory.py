"""Place FLUX.1's weights for training: 24 GB on the GPU in bf16, less with quantized weights or swapped blocks."""

from typing import Any

import torch
from torch import nn

from sd_scripts.families.family import Components
from sd_scripts.families.flux.model import FluxTransformer, Modulation
from sd_scripts.families.quantizing import block_quantizer
from sd_scripts.library.block_swap import BlockSwap, CopyStreams, SwapGroup, swap_counts, swapped_blocks
from sd_scripts.library.checkpointing import checkpoint_function
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.settings import Settings
from sd_scripts.options.training import TrainingOptions


def place(components: Components, settings: Settings, device: torch.device) -> None:
    """Move the transformer to the device block by block, quantizing each, so that the device never holds all of it in
    full precision. Swapped blocks are copied back after a step if its parameters require gradients by now."""
    flux: Any = components.denoiser
    memory = settings[MemoryOptions]
    quantize = block_quantizer(settings, flux.dtype, device, few_tokens=Modulation)
    for name, part in flux.named_children():
        if name not in ("double_blocks", "single_blocks"):
            part.to(device)
    swaps = []
    streams, trainable = CopyStreams.of(device), any(p.requires_grad for p in flux.parameters())
    kinds = (flux.double_blocks, flux.single_blocks)
    for blocks, count in zip(kinds, swap_counts(memory.blocks_to_swap or 0), strict=True):
        moves = swapped_blocks(len(blocks), count)
        for number, block in enumerate(blocks):
            if quantize:
                block.to(device)  # where it is quick
                quantize(block, number not in moves)
                block.to("cpu" if number in moves else device)
        swaps.append(BlockSwap(blocks, count, device, streams=streams, trainable=trainable))
    flux.swapper = SwapGroup(swaps) if memory.blocks_to_swap else None


def checkpoint_gradients(denoiser: nn.Module, settings: Settings) -> None:
    assert isinstance(denoiser, FluxTransformer)
    denoiser.enable_gradient_checkpointing(
        checkpoint_function(settings), offload=settings[TrainingOptions].cpu_offload_checkpointing
    )
