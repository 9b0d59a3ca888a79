"""HunyuanVideo's components: how each is created from its files and stored in memory, and which do not fit together."""

import re
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn

from sd_scripts.families.common.components import DENOISER, VAE, Components, WeightSource
from sd_scripts.families.common.layouts import Layout, clip_l, make_text_encoder
from sd_scripts.families.common.network_problems import network_problems
from sd_scripts.families.common.placing import Placement, place_transformer, swap_problems
from sd_scripts.families.hunyuan_video import keys, lora
from sd_scripts.families.hunyuan_video.card import CARD, TRANSFORMERS
from sd_scripts.families.hunyuan_video.card.memory_facts import swap_counts
from sd_scripts.families.hunyuan_video.model import HunyuanParams, HunyuanVideoTransformer, Modulation
from sd_scripts.families.hunyuan_video.vae import make_vae
from sd_scripts.library.diffusion.block_swap import SLOTS
from sd_scripts.library.files.state_dicts import Shapes
from sd_scripts.library.text.tokenizers import CLIP, LLAMA
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.settings.settings import Settings

LLM, CLIP_L = "text_encoder1", "text_encoder2"
LINEAR = re.compile(r"(double_blocks|single_blocks)\..*\.weight")
LANGUAGE_LINEAR = re.compile(r"layers\..*\.weight")
"""Names of weights that can be quantized."""


def make_language_model(shapes: Shapes) -> nn.Module:
    """Return the layers of LLaMA whose output HunyuanVideo reads, without the final norm."""
    model: Any = make_text_encoder("LlamaModel", "LlamaConfig", keys.language_config(shapes))
    model.norm = nn.Identity()
    return cast(nn.Module, model)


TEXT_LAYOUTS = {
    LLM: Layout(make=make_language_model, unify=keys.language_model, tokenizer=LLAMA, quantizable=LANGUAGE_LINEAR),
    CLIP_L: clip_l(tokenizer=CLIP),
    VAE: Layout(make=make_vae),
}
LAYOUTS = {
    DENOISER: Layout(
        make=lambda shapes: HunyuanVideoTransformer(HunyuanParams.of(shapes)),
        unify=lambda file: keys.from_diffusers(file) if TRANSFORMERS[1] in file else file,
        quantizable=LINEAR,
    ),
    **TEXT_LAYOUTS,
}


def place(components: Components, placement: Placement, device: torch.device) -> None:
    """Move the transformer to the device, quantized and with swapped blocks as the options specify: 26 GB in bf16."""
    transformer = cast(HunyuanVideoTransformer, components.denoiser)
    counts = swap_counts(placement.swapped_blocks)
    kinds: Any = zip((transformer.double_blocks, transformer.single_blocks), counts, strict=True)
    place_transformer(transformer, kinds, placement.quantization, device, few_tokens=Modulation)


def max_blocks_to_swap(double: int, single: int) -> int:
    """Return the largest blocks_to_swap of a model with this many blocks: 37 for 20 double and 40 single ones."""
    fits = (swap_counts(n) for n in range(double + single + 1))
    return max((n for n, (d, s) in enumerate(fits) if d <= double - SLOTS and s <= single - SLOTS), default=0)


def problems(sources: Mapping[str, WeightSource], settings: Settings) -> list[str]:
    """Return problems of components of a different model, and of options that the transformer limits."""
    transformer: Any = sources[DENOISER].empty
    params: HunyuanParams = transformer.params
    model = f"a model with {params.double_blocks} double and {params.single_blocks} single blocks"
    most = max_blocks_to_swap(params.double_blocks, params.single_blocks)
    return [
        *width_problems(sources, params),
        *swap_problems(settings.get(MemoryOptions), most, model),
        *network_problems(sources[DENOISER], lora.TRANSFORMER, settings),
    ]


def width_problems(sources: Mapping[str, WeightSource], params: HunyuanParams) -> list[str]:
    """Return a problem for each component whose width the transformer does not expect."""
    expected = {
        LLM: ("hidden_size", params.text_width, "vectors of {} values"),
        CLIP_L: ("hidden_size", params.pooled_width, "vectors of {} values"),
        VAE: ("latent_channels", params.channels, "latents of {} channels"),
    }
    found = []
    for component in CARD.files.separate_components:
        width, size, what = expected[component.name]
        source = sources.get(component.name)
        if source and (actual := getattr(source.empty.config, width)) != size:
            found.append(
                f"{component.option}: '{source.path}' produces {what.format(actual)}, but the transformer expects "
                f"{size}; choose {component.title} of HunyuanVideo"
            )
    return found
