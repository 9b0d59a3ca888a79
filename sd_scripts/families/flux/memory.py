"""Place FLUX.1's weights for training: 24 GB on the GPU in bf16, less in fp8 or with swapped blocks."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import T5EncoderModel
from transformers.models.t5.modeling_t5 import T5DenseGatedActDense

from sd_scripts.families.family import Components
from sd_scripts.families.flux.model import FluxTransformer, Modulation
from sd_scripts.families.placing import blocks_to_swap, place_blocks
from sd_scripts.library import fp8
from sd_scripts.library.block_swap import swap_counts
from sd_scripts.library.checkpointing import checkpoint_function
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.network import NetworkOptions
from sd_scripts.options.settings import Settings
from sd_scripts.options.training import TrainingOptions


def place(components: Components, settings: Settings, device: torch.device) -> None:
    """Move the transformer to the device, quantized and with swapped blocks as the options say."""
    flux: Any = components.denoiser
    counts = swap_counts(blocks_to_swap(settings))
    quantize = partial(_quantize, dtype=flux.dtype, settings=settings) if holds_in_fp8(settings) else None
    kinds = zip((flux.double_blocks, flux.single_blocks), counts, strict=True)
    flux.swapper = place_blocks(flux, kinds, device, quantize=quantize)


def checkpoint_gradients(denoiser: nn.Module, settings: Settings) -> None:
    assert isinstance(denoiser, FluxTransformer)
    denoiser.enable_gradient_checkpointing(
        checkpoint_function(settings), offload=settings[TrainingOptions].cpu_offload_checkpointing
    )


def holds_in_fp8(settings: Settings) -> bool:
    """Return whether the transformer is held in fp8: not in full training, where its weights are updated."""
    if not settings.get(NetworkOptions):
        return False
    training = settings[TrainingOptions]
    return training.fp8_base or training.fp8_base_unet or settings[MemoryOptions].fp8_compute


def _quantize(block: nn.Module, stays: bool, *, dtype: torch.dtype, settings: Settings) -> None:
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


def holds_t5_in_fp8(settings: Settings) -> bool:
    training = settings[TrainingOptions]
    return bool(settings.get(NetworkOptions)) and training.fp8_base and not training.fp8_base_unet


def quantize_t5(encoder: T5EncoderModel, dtype: torch.dtype) -> None:
    """Hold the weights of T5's Linears in fp8, rounded on the GPU if there is one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for module in list(encoder.modules()):
        if isinstance(module, T5DenseGatedActDense):
            module.__class__ = _GatedDense
        if isinstance(module, nn.Linear) and fp8.fits(module):
            host_copy = module.weight.device
            fp8.quantize_(module.to(device), dtype).to(host_copy)


class _GatedDense(T5DenseGatedActDense):
    """T5's MLP, without its cast of activations to the dtype of the weights."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        gated = self.act(self.wi_0(hidden_states)) * self.wi_1(hidden_states)
        return self.wo(self.dropout(gated))
