"""Place SDXL's U-Net for training: 5 GB on the GPU in bf16, less with quantized weights."""

from typing import Any

import torch
from diffusers.models.resnet import ResnetBlock2D

from sd_scripts.families.family import Components
from sd_scripts.families.quantizing import block_quantizer
from sd_scripts.families.sdxl.unet import compile_targets
from sd_scripts.options.settings import Settings


def place(components: Components, settings: Settings, device: torch.device) -> None:
    """Move the U-Net to the device block by block, quantizing each as the options say, so that the device never holds
    all of it in full precision."""
    unet: Any = components.denoiser
    quantize = block_quantizer(settings, unet.dtype, device, few_tokens=ResnetBlock2D)
    if quantize:
        for block in (block for part in compile_targets(unet) for block in part):
            block.to(device)
            quantize(block, True)
    unet.to(device)
