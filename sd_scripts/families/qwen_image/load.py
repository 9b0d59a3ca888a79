"""Qwen-Image's components: how each is created from its files and stored in memory, and which do not fit together."""

import re
from collections.abc import Mapping
from typing import Any

from transformers import Qwen2_5_VLTextModel
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig

from sd_scripts.families.common.components import DENOISER, VAE, WeightSource
from sd_scripts.families.common.encoders.causal_vae import vae_config, vae_from_single_file
from sd_scripts.families.common.layouts import Layout
from sd_scripts.families.common.placing import BlockLists
from sd_scripts.families.common.problems import Expected, params_of
from sd_scripts.families.qwen_image import keys
from sd_scripts.families.qwen_image.model import Modulation, QwenImageParams, QwenImageTransformer
from sd_scripts.library.files.lean_diffusers import AutoencoderKLQwenImage
from sd_scripts.library.text.tokenizers import QWEN

TEXT_ENCODER = "text_encoder1"
BLOCK_LISTS = BlockLists(names={"transformer_blocks": ""}, few_tokens=Modulation)
LANGUAGE_LINEAR = re.compile(r"(model\.|model\.language_model\.)?layers\..*\.weight")
"""Names, and keys in files, of weights that can be quantized."""

LAYOUTS = {
    DENOISER: Layout(
        make=lambda shapes: QwenImageTransformer(QwenImageParams.of(shapes)), quantizable=BLOCK_LISTS.weights
    ),
    TEXT_ENCODER: Layout(
        make=lambda shapes: Qwen2_5_VLTextModel(Qwen2_5_VLTextConfig(**keys.language_config(shapes))),
        unify=keys.language_model,
        tokenizer=QWEN,
        quantizable=LANGUAGE_LINEAR,
    ),
    VAE: Layout(make=lambda shapes: AutoencoderKLQwenImage(**vae_config(shapes)), unify=vae_from_single_file),
}


def expected(sources: Mapping[str, WeightSource]) -> Expected:
    params: QwenImageParams = params_of(sources)
    of_vae = {} if _is_layered(sources) else {VAE: ("z_dim", params.channels // 4)}
    return {TEXT_ENCODER: ("hidden_size", params.text_width), **of_vae}


def problems(sources: Mapping[str, WeightSource]) -> list[str]:
    """Return a problem if the VAE is of a different model."""
    if not _is_layered(sources):
        return []
    return [
        f"vae: '{sources[VAE].path}' is the VAE of Qwen-Image-Layered, which encodes transparency; choose the VAE "
        "of Qwen-Image"
    ]


def _is_layered(sources: Mapping[str, WeightSource]) -> bool:
    vae: Any = sources[VAE].empty if VAE in sources else None
    return vae is not None and vae.config.input_channels != 3
