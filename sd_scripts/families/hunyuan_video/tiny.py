"""HunyuanVideo in miniature: files of the real layout with tiny widths and random weights, for the demo and for tests.

Latents have mean 0 and deviation 1, and the last layer is fitted to random features, computed without attention.
Attention, which LoRA adapts, then disturbs a fair denoiser, so that the loss falls within a few dozen steps.
"""

import re
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import CLIPTextModel, LlamaConfig, LlamaModel, PreTrainedTokenizerFast

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.hunyuan_video import keys
from sd_scripts.families.hunyuan_video.card import CARD
from sd_scripts.families.hunyuan_video.load import CLIP_L, LLM
from sd_scripts.families.hunyuan_video.model import HunyuanParams, HunyuanVideoTransformer, Modulation
from sd_scripts.families.hunyuan_video.text import PREFIX
from sd_scripts.library.diffusion.flow_timesteps import shifted
from sd_scripts.library.files.lean_diffusers import AutoencoderKLHunyuanVideo
from sd_scripts.testing import miniature
from sd_scripts.testing.miniature import (
    Miniature,
    caption_words,
    clip_config,
    clip_tokenizer,
    fit_velocity,
    images,
    randomize,
    set_moments,
    states_of,
    weaken_conditioning,
    without_attention,
)

WIDTH = 64
"""Of both text encoders."""
PARAMS = HunyuanParams(
    width=64,
    heads=2,
    mlp_width=256,
    text_width=WIDTH,
    pooled_width=WIDTH,
    refiner_blocks=1,
    double_blocks=3,  # the fewest that can take turns, with blocks_to_swap = 2
    single_blocks=4,
)
AUTOENCODER: dict[str, Any] = {
    "block_out_channels": (16, 16, 32, 32),
    "layers_per_block": 1,
    "norm_num_groups": 8,
}
SHIFT, GUIDANCE = 7.0, 1.0
"""Timestep shift and guidance of the fit, as recommended for training."""
SPECIAL = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


def write_miniature(folder: Path, params: HunyuanParams = PARAMS) -> Miniature:
    """Create the four files of a HunyuanVideo, tokenizers next to them, and captioned images: a few MB, in seconds.
    `params` may be those of an image-to-video model."""
    llama, clip = llama_tokenizer(), clip_tokenizer()
    modules = tiny_modules(len(llama), len(clip), params)
    return miniature.write_miniature(CARD, folder, (llama, clip), states_of(modules))


write_narrow = write_miniature
"""Its blocks are equal, as HunyuanVideo's are, so it needs the same number of compiled graphs."""


def llama_tokenizer() -> PreTrainedTokenizerFast:
    """Make a byte-level tokenizer like LLaMA-3's that merges the letters of each word of captions and of the text
    around them one by one."""
    merges: dict[tuple[str, str], None] = {}
    for word in (*caption_words(), *sorted(set(re.findall(r"\w+", PREFIX)))):
        for written in (word, f"Ġ{word}"):  # at the beginning of a text, and after a space
            merges |= dict.fromkeys((written[:n], written[n]) for n in range(1, len(written)))
    tokens = dict.fromkeys([*sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in merges)])
    made = Tokenizer(models.BPE(vocab={token: place for place, token in enumerate(tokens)}, merges=list(merges)))
    split = pre_tokenizers.Split(Regex(r"\s*[\r\n]+| ?\w+|\s+|[^\s\w]+"), behavior="isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    made.post_processor = processors.TemplateProcessing(
        f"{SPECIAL[0]} $A", special_tokens=[(SPECIAL[0], made.token_to_id(SPECIAL[0]))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=SPECIAL[0], eos_token=SPECIAL[3])


@torch.no_grad()
def tiny_modules(vocabulary: int, clip_vocabulary: int, params: HunyuanParams = PARAMS) -> dict[str, nn.Module]:
    """Return all components with random weights, the same at every call; LLaMA with all its layers."""
    transformer, vae = HunyuanVideoTransformer(params), AutoencoderKLHunyuanVideo(**AUTOENCODER)
    modules = {DENOISER: transformer, **tiny_encoders(vocabulary, clip_vocabulary), VAE: vae}
    generator = torch.Generator().manual_seed(0)
    for module in modules.values():
        randomize(module, generator)
    modulations = [module.linear for module in transformer.modules() if isinstance(module, Modulation)]
    weaken_conditioning(modulations, transformer.get_submodule("final_layer.adaLN_modulation.1"))  # type: ignore[arg-type]
    _fit(transformer, calibrate_clips(vae).repeat(4, 1, 1, 1), generator)
    return modules


def tiny_encoders(vocabulary: int, clip_vocabulary: int) -> dict[str, nn.Module]:
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (vocabulary, WIDTH)}
    shapes |= {f"layers.{number}.mlp.gate_proj.weight": (2 * WIDTH, WIDTH) for number in range(4)}
    shapes |= {"layers.0.self_attn.k_proj.weight": (WIDTH, WIDTH)}
    return {
        LLM: LlamaModel(LlamaConfig(**keys.language_config(shapes))),
        CLIP_L: CLIPTextModel(clip_config(clip_vocabulary, WIDTH, "quick_gelu")),
    }


def calibrate_clips(vae: Any) -> Tensor:
    """Give the latents of the drawn images mean 0, deviation 1 and a narrow distribution; return them, scaled,
    (12, 16, h, w)."""
    pixels = images()[:, :, None]
    moments = vae.encode(pixels).latent_dist.parameters  # (12, 32, 1, h, w)
    gain = 1 / (vae.config.scaling_factor * moments.std((0, 2, 3, 4)))
    latents = set_moments(vae.quant_conv, moments, gain, 0.0).squeeze(2)
    return latents * float(vae.config.scaling_factor)


def _fit(transformer: HunyuanVideoTransformer, latents: Tensor, generator: torch.Generator) -> None:
    """Fit the last layer to predict the velocity without attention, which disturbs it afterwards."""
    double: Any = transformer.double_blocks
    single: Any = transformer.single_blocks
    outputs = [block.img_attn_proj.weight for block in double]
    outputs += [block.linear2.weight[:, : transformer.params.width] for block in single]
    with without_attention(outputs, generator):
        noise = torch.randn(latents.shape, generator=generator)
        times = shifted(torch.sigmoid(torch.randn(len(latents), generator=generator)), SHIFT)
        text = torch.zeros(len(latents), 8, WIDTH)
        pooled = torch.randn(len(latents), WIDTH, generator=generator)
        guidance = torch.full((len(latents),), GUIDANCE)

        def run(noisy: Tensor) -> object:
            start = noisy.new_zeros(len(noisy), transformer.params.image_channels, *noisy.shape[2:])
            return transformer(torch.cat((noisy, start), dim=1)[:, :, None], text, pooled, times, guidance)

        fit_velocity(transformer.final_layer.linear, latents, noise, times, run)
