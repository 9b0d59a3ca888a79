"""Place FLUX.1's weights for training: 24 GB on the GPU in bf16, less with quantized weights or swapped blocks."""

from typing import Any

import torch
from torch import nn

from sd_scripts.families.common.family import Components
from sd_scripts.families.common.placing import blocks_to_swap, place_blocks
from sd_scripts.families.common.quantizing import block_quantizer
from sd_scripts.families.flux.card.memory_facts import swap_counts
from sd_scripts.families.flux.model import FluxTransformer, Modulation
from sd_scripts.library.diffusion.block_swap import SLOTS
from sd_scripts.library.diffusion.checkpointing import checkpoint_function
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.settings.quantization import quantization_of
from sd_scripts.settings.settings import Settings


def max_blocks_to_swap(double: int, single: int) -> int:
    """Return the largest blocks_to_swap of a model with so many blocks: 35 for 19 double and 38 single ones."""
    fits = (swap_counts(n) for n in range(double + single + 1))
    return max((n for n, (d, s) in enumerate(fits) if d <= double - SLOTS and s <= single - SLOTS), default=0)


def place(components: Components, settings: Settings, device: torch.device) -> None:
    """Move the transformer to the device, quantized and with swapped blocks as the options say."""
    flux: Any = components.denoiser
    quantize = block_quantizer(quantization_of(settings), flux.dtype, device, few_tokens=Modulation)
    kinds = zip(
        (flux.double_blocks, flux.single_blocks), swap_counts(blocks_to_swap(settings.get(MemoryOptions))), strict=True
    )
    flux.swapper = place_blocks(flux, kinds, device, quantize=quantize)


def checkpoint_gradients(denoiser: nn.Module, settings: Settings) -> None:
    assert isinstance(denoiser, FluxTransformer)
    denoiser.enable_gradient_checkpointing(
        checkpoint_function(settings.get(NetworkOptions)), offload=settings[TrainingOptions].cpu_offload_checkpointing
    )
