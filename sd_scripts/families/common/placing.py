"""Place a denoiser for training: its blocks one by one, quantized, some of them swapped; all else at once."""

from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from torch import nn

from sd_scripts.library.diffusion.block_swap import BlockSwap, CopyStreams, SwapGroup, swapped_blocks
from sd_scripts.options.memory import MemoryOptions

Kind = tuple[Sequence[nn.Module], int]
"""Blocks of about the same size in the order of the forward pass, and how many of them stay off the device."""
Quantize = Callable[[nn.Module, bool], object]
"""Quantizes a block that is on the device; the flag says whether it stays there."""


def blocks_to_swap(memory: MemoryOptions | None) -> int:
    """Return how many blocks a run with these options swaps."""
    return (memory.blocks_to_swap or 0) if memory else 0


def swap_problems(memory: MemoryOptions | None, most: int, model: str) -> list[str]:
    """Return a problem if more than `most` blocks are to be swapped. `model`: "a model with 3 blocks"."""
    swap = blocks_to_swap(memory)
    if swap <= most:
        return []
    remedy = f"set {most} or less" if most else "leave it unset"
    return [f"blocks_to_swap: {swap} exceeds {most}, the most that {model} can swap; {remedy}"]


def place_blocks(
    denoiser: nn.Module, kinds: Iterable[Kind], device: torch.device, *, quantize: Quantize | None = None
) -> SwapGroup | None:
    """Move a denoiser to the device and return what swaps its blocks; None if it swaps none.

    Each block of `kinds` is quantized on the device as soon as it is there, so that the device never holds all of them
    in full precision. Swapped blocks are copied back after a step if the denoiser's parameters require gradients by
    now.
    """
    lists = [(list(blocks), off) for blocks, off in kinds]
    _move_except({block for blocks, _ in lists for block in blocks}, denoiser, device)
    swaps = []
    streams, trainable = CopyStreams.of(device), any(p.requires_grad for p in denoiser.parameters())
    for blocks, off in lists:
        swapped = swapped_blocks(len(blocks), off)
        for number, block in enumerate(blocks) if quantize else ():
            assert quantize
            block.to(device)  # where quantizing is quick
            quantize(block, number not in swapped)
            block.to("cpu" if number in swapped else device)
        swaps.append(BlockSwap(blocks, off, device, streams=streams, trainable=trainable))
    group = SwapGroup(swaps)
    return group if len(group) else None


def _move_except(blocks: Collection[nn.Module], module: nn.Module, device: torch.device) -> None:
    """Move everything in `module` but the blocks to the device."""
    if not any(part in blocks for part in module.modules()):
        module.to(device)
        return
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        tensor.data = tensor.data.to(device)
    for child in module.children():
        if child not in blocks:
            _move_except(blocks, child, device)
