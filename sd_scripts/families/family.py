"""What a model family must answer. A family is a folder that fills in one of these; the trainer knows no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from sd_scripts.library.prompts import SamplePrompt
from sd_scripts.networks.lora import LoraTarget
from sd_scripts.options.settings import Settings

if TYPE_CHECKING:
    from sd_scripts.data.batch import Batch
    from sd_scripts.data.cache_files import Arrays


@dataclass(kw_only=True)
class Components:
    """The modules of a loaded base model."""

    denoiser: nn.Module
    """What predicts: the U-Net, or the transformer."""
    vae: nn.Module
    text_encoders: list[nn.Module]
    tokenizers: list[Any]
    source: Path | str
    """Where the weights came from: file, folder or Hugging Face id."""
    extras: dict[str, Any] = field(default_factory=dict)
    """What saving must give back unchanged, such as logit_scale of SDXL's second encoder."""


class Load(Protocol):
    """The base model, frozen, in eval mode and in `dtype`. What learns can be loaded wider, so that it begins with all
    digits of its file. Raises ValueError, one sentence that names the option."""

    def __call__(
        self,
        settings: Settings,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        *,
        denoiser_dtype: torch.dtype | None = None,
        encoder_dtype: torch.dtype | None = None,
    ) -> Components: ...


@dataclass(frozen=True, kw_only=True)
class ModelWeights:
    """What was trained, to be saved: state dicts under the modules' own names, on any device."""

    denoiser: Mapping[str, Tensor]
    """Whole, with what stood still in it."""
    text_encoders: Sequence[Mapping[str, Tensor] | None] = (None, None)
    """None: that one did not learn."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """`inputs` below is a dict of tensors of static shape: all that a step reads, made outside the step."""

    name: str
    title: str
    """As the compile log names the denoiser: "SDXL UNet"."""
    base_model_version: str
    """ss_base_model_version of saved LoRAs."""
    architecture: Callable[[Components], str]
    """modelspec.architecture, without "/lora"."""
    implementation: str
    """modelspec.implementation."""
    bucket_multiple: int
    latent_channels: int
    latent_suffix: str
    """Of latent cache files: "sdxl" in `name_1024x1024_sdxl.npz`."""
    text_cache_suffix: str
    """Of text cache files: "te_outputs" in `name_te_outputs.npz`."""
    text_cache_key: Callable[[Components, Settings], tuple[object, ...]]
    """All beside the encoders that changes what they give: a cache made under others is made anew."""
    text_cache_fits: Callable[[Components, Arrays], bool] | None = None
    """Whether a cache file of unknown origin can be used; None: any."""
    trains_text_encoders: bool = False
    """Whether full training can train its text encoders."""
    adapted_encoders: Callable[[Settings], tuple[bool, ...]]
    """Which text encoders a LoRA adapts where text encoders learn."""
    check: Callable[[Settings], list[str]]
    """What is wrong with the model files as far as names and headers tell; nothing is loaded."""
    load: Load
    load_vae: Callable[[Settings, torch.dtype], nn.Module]
    """The autoencoder alone, as `load` would have it: for encoding images ahead of any run."""
    remarks: Callable[[Components, Settings], list[str]]
    """Settings that do nothing on this model."""
    encode_images: Callable[[Components, Tensor], Tensor]
    """Pixels (B, 3, H, W) -> latents as the cache stores them."""
    tokenize: Callable[[Components, Sequence[str], Settings], dict[str, Tensor]]
    """Captions -> token ids and weights, on the CPU; names end with the number of the encoder, from 1."""
    encode_text: Callable[[Components, dict[str, Tensor]], dict[str, Tensor]]
    """Tokens -> what the text cache stores, batch first, of the encoders whose tokens are there. Differentiable where
    encoders learn."""
    place: Callable[[Components, Settings, torch.device], None]
    """Bring the denoiser to where steps compute: quantized and swapped as the options say."""
    checkpoint_gradients: Callable[[nn.Module, Settings], None]
    """Let the denoiser keep little for backward and compute the rest again."""
    step_inputs: Callable[[Batch, Tensor, Settings, torch.Generator, Tensor | None], dict[str, Tensor]]
    """Batch, latents as cached but on the device, settings, generator of this step, timesteps float32 (None: drawn)
    -> inputs, without text."""
    validation_timesteps: Callable[[Settings], list[float]]
    """Where the validation loss is measured, in this family's own unit of time."""
    loss: Callable[[Components, dict[str, Tensor], dict[str, Tensor], Settings], Tensor]
    """Parts, inputs, text outputs, settings -> loss of each image (B,)."""
    compile_targets: Callable[[nn.Module], list[list[nn.Module]]]
    """The repeated blocks of the denoiser that share graphs, in lists as they lie in the model."""
    graph_kinds: Callable[[nn.Module], dict[str, int]]
    """How many graphs each class of block needs at one image size."""
    block_of: Callable[[str], int] | None = None
    """Name of a parameter of the denoiser -> its place in block_lr; None: this family has no block_lr."""
    lora: LoraTarget
    lora_text_encoders: tuple[LoraTarget, ...]
    lora_modules: tuple[str, ...]
    """Names of network_module that mean our LoRA."""
    sample_defaults: SamplePrompt
    """What a prompt does not say."""
    sample: Callable[[Components, SamplePrompt, Settings], Any]
    """A PIL image, made eagerly."""
    prediction_type: Callable[[Settings], str | None]
    """modelspec.prediction_type: epsilon, v, or None."""
    metadata: Callable[[Settings, Components], dict[str, str]]
    """What LoRA files of this family say beside the common ss_ entries."""
    saved_form: Callable[[Components, str | None], str]
    """save_model_as, None where it is unset -> the form that `save` writes, which is also the ending of a file:
    safetensors or ckpt; diffusers is a folder."""
    save: Callable[[Components, ModelWeights, Path, str, torch.dtype | None, dict[str, str]], None]
    """Parts, weights, where, form, dtype of all tensors (None: as they are held), metadata -> a whole model, at once or
    not at all. OSError in one sentence where it cannot be written; what was there before is still there then."""
