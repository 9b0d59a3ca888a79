"""Place Qwen-Image's weights for training: 41 GB on the GPU in bf16, less with quantized weights or swapped blocks."""

from typing import Any

import torch
from torch import nn

from sd_scripts.families.common.family import Components
from sd_scripts.families.common.placing import blocks_to_swap, place_blocks
from sd_scripts.families.common.quantizing import block_quantizer
from sd_scripts.families.qwen_image.model import Modulation, QwenImageTransformer
from sd_scripts.library.diffusion.checkpointing import checkpoint_function
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.settings.quantization import quantization_of
from sd_scripts.settings.settings import Settings


def place(components: Components, settings: Settings, device: torch.device) -> None:
    """Move the transformer to the device, quantized and with swapped blocks as the options say."""
    transformer: Any = components.denoiser
    quantize = block_quantizer(quantization_of(settings), transformer.dtype, device, few_tokens=Modulation)
    kinds = [(transformer.transformer_blocks, blocks_to_swap(settings.get(MemoryOptions)))]
    transformer.swapper = place_blocks(transformer, kinds, device, quantize=quantize)


def checkpoint_gradients(denoiser: nn.Module, settings: Settings) -> None:
    assert isinstance(denoiser, QwenImageTransformer)
    denoiser.enable_gradient_checkpointing(
        checkpoint_function(settings.get(NetworkOptions)), offload=settings[TrainingOptions].cpu_offload_checkpointing
    )
