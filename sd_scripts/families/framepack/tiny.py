"""FramePack in miniature: HunyuanVideo's, whose transformer has FramePack's layout, and a tiny SigLIP."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import SiglipVisionConfig, SiglipVisionModel

from sd_scripts.families.common.blocks.streams import Modulation
from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders.tiny_hunyuan_vae import AUTOENCODER, calibrate_clips
from sd_scripts.families.common.encoders.tiny_llama import llama_tokenizer, tiny_encoders
from sd_scripts.families.framepack.card import CARD
from sd_scripts.families.framepack.card.options import FramePackOptions
from sd_scripts.families.framepack.load import IMAGE_ENCODER
from sd_scripts.families.framepack.model import FramePackParams, FramePackTransformer, RefinerBlock
from sd_scripts.families.framepack.sections import single_frame
from sd_scripts.families.hunyuan_video import tiny as hunyuan_video
from sd_scripts.library.files.lean_diffusers import AutoencoderKLHunyuanVideo
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings
from sd_scripts.testing import miniature
from sd_scripts.testing.miniature import (
    Miniature,
    clip_tokenizer,
    draw_weights,
    fit_denoiser,
    states_of,
    weaken_conditioning,
)

SIGLIP: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "image_size": 28,
    "patch_size": 14,
    "hidden_act": "gelu_pytorch_tanh",
}
PARAMS = FramePackParams(**vars(hunyuan_video.PARAMS) | {"image_width": SIGLIP["hidden_size"]})
SHIFT = 3.0


def write_miniature(folder: Path) -> Miniature:
    """Create the five files of a FramePack, tokenizers next to them, and captioned images: a few MB, in seconds."""
    llama, clip = llama_tokenizer(), clip_tokenizer()
    return miniature.write_miniature(CARD, folder, (llama, clip), states_of(tiny_modules(len(llama), len(clip))))


@torch.no_grad()
def tiny_modules(vocabulary: int, clip_vocabulary: int) -> dict[str, nn.Module]:
    """Return all components with random weights, the same at every call."""
    transformer, vae = FramePackTransformer(PARAMS), AutoencoderKLHunyuanVideo(**AUTOENCODER)
    modules = {
        DENOISER: transformer,
        **tiny_encoders(vocabulary, clip_vocabulary),
        IMAGE_ENCODER: SiglipVisionModel(SiglipVisionConfig(**SIGLIP)),
        VAE: vae,
    }
    generator = draw_weights(modules)
    refiners = {block.norm_out for block in transformer.modules() if isinstance(block, RefinerBlock)}
    modulations = [m.linear for m in transformer.modules() if isinstance(m, Modulation) and m not in refiners]
    weaken_conditioning(modulations, transformer.norm_out.linear)
    _fit(transformer, calibrate_clips(vae).repeat(4, 1, 1, 1), generator)
    return modules


def _fit(transformer: FramePackTransformer, latents: Tensor, generator: torch.Generator) -> None:
    """Fit the last layer to single frames."""
    double: Any = transformer.transformer_blocks
    single: Any = transformer.single_transformer_blocks
    outputs = [block.attn.to_out[0].weight for block in double]
    outputs += [block.proj_out.weight[:, : PARAMS.width] for block in single]
    section = single_frame(Settings(script_for(CARD.name, "lora"), {})[FramePackOptions], torch.device("cpu"))
    image = torch.zeros(len(latents), 4, PARAMS.image_width)

    def run(noisy: Tensor, times: Tensor) -> object:
        predicted, known = section.split(noisy[:, :, None])
        text, pooled, t, guidance = hunyuan_video.vectors(len(noisy), times, generator)
        return transformer(predicted, section.places, known, text, pooled, image, t, guidance)

    fit_denoiser(transformer.proj_out, outputs, latents, generator, run, shift=SHIFT)
