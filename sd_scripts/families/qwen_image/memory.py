"""Place Qwen-Image's weights for training: 41 GB on the GPU in bf16, less in fp8 or with swapped blocks."""

from typing import Any

import torch
from torch import nn

from sd_scripts.families.family import Components
from sd_scripts.families.qwen_image.model import Modulation, QwenImageTransformer
from sd_scripts.library import fp8
from sd_scripts.library.block_swap import SLOTS, BlockSwap, SwapGroup, swapped_blocks
from sd_scripts.library.checkpointing import checkpoint_function
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.network import NetworkOptions
from sd_scripts.options.settings import Settings
from sd_scripts.options.training import TrainingOptions


def place(components: Components, settings: Settings, device: torch.device) -> None:
    """Move the transformer to the device block by block, quantizing each, so that the device never holds all of it in
    full precision. Swapped blocks are copied back after a step if its parameters require gradients by now."""
    transformer: Any = components.denoiser
    blocks, count = transformer.transformer_blocks, settings[MemoryOptions].blocks_to_swap or 0
    for name, part in transformer.named_children():
        if name != "transformer_blocks":
            part.to(device)
    swapped = swapped_blocks(len(blocks), count)
    if holds_in_fp8(settings):
        for number, block in enumerate(blocks):
            block.to(device)  # where it is quick
            _quantize(block, transformer.dtype, settings, stays=number not in swapped)
            block.to("cpu" if number in swapped else device)
    trainable = any(parameter.requires_grad for parameter in transformer.parameters())
    swap = BlockSwap(blocks, count, device, trainable=trainable)
    transformer.swapper = SwapGroup([swap]) if count else None


def max_blocks_to_swap(blocks: int) -> int:
    """Return the largest blocks_to_swap: 58 of 60."""
    return max(0, blocks - SLOTS)


def checkpoint_gradients(denoiser: nn.Module, settings: Settings) -> None:
    assert isinstance(denoiser, QwenImageTransformer)
    denoiser.enable_gradient_checkpointing(
        checkpoint_function(settings), offload=settings[TrainingOptions].cpu_offload_checkpointing
    )


def holds_in_fp8(settings: Settings) -> bool:
    """Return whether the transformer is held in fp8: not in full training, where its weights are updated."""
    if not settings.get(NetworkOptions):
        return False
    training = settings[TrainingOptions]
    return training.fp8_base or training.fp8_base_unet or settings[MemoryOptions].fp8_compute


def _quantize(block: nn.Module, dtype: torch.dtype, settings: Settings, *, stays: bool) -> None:
    """Hold a block's Linears in fp8. Modulations read one token for each image, so fp8_compute would not speed them up.

    fp8_compute alone is for speed: blocks that stay on the device also keep transposed weights, modulations stay in
    `dtype`, and memory is as in bf16.
    """
    training, compute = settings[TrainingOptions], settings[MemoryOptions].fp8_compute
    spare = training.fp8_base or training.fp8_base_unet
    few_tokens = {layer for part in block.modules() if isinstance(part, Modulation) for layer in part.modules()}
    for layer in list(block.modules()):
        if not isinstance(layer, nn.Linear) or not fp8.fits(layer):
            continue
        if layer.weight.dtype != fp8.STORAGE:
            layer.to(dtype)  # until here it has the dtype of its file
        fast = compute and layer not in few_tokens
        if fast or spare or layer.weight.dtype == fp8.STORAGE:
            fp8.quantize_(layer, dtype, compute=fast, keep_transposed=stays and not spare)


def holds_text_in_fp8(settings: Settings) -> bool:
    training = settings[TrainingOptions]
    return bool(settings.get(NetworkOptions)) and training.fp8_base and not training.fp8_base_unet


def quantize_text_encoder(encoder: nn.Module, dtype: torch.dtype) -> None:
    """Hold the weights of the encoder's Linears in fp8, rounded on the GPU if there is one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for layer in list(encoder.modules()):
        if isinstance(layer, nn.Linear) and fp8.fits(layer):
            host_copy = layer.weight.device
            fp8.quantize_(layer.to(device), dtype).to(host_copy)
