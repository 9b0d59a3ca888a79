"""FramePack's components: how each is created from its files and stored in memory, and which do not fit together."""

import re
from collections.abc import Mapping
from typing import Any, cast

import torch

from sd_scripts.families.common.components import DENOISER, Components, WeightSource
from sd_scripts.families.common.layouts import Layout, make_text_encoder
from sd_scripts.families.common.network_problems import network_problems
from sd_scripts.families.common.placing import Placement, place_transformer, swap_problems
from sd_scripts.families.framepack import lora
from sd_scripts.families.framepack.model import FramePackParams, FramePackTransformer, Modulation
from sd_scripts.families.hunyuan_video.card.memory_facts import swap_counts
from sd_scripts.families.hunyuan_video.load import TEXT_LAYOUTS, max_blocks_to_swap, width_problems
from sd_scripts.library.files.state_dicts import Shapes, count
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.settings.settings import Settings

IMAGE_ENCODER = "text_encoder3"
LINEAR = re.compile(r"(transformer_blocks|single_transformer_blocks)\..*\.weight")
"""Names of weights that can be quantized."""
HEAD_WIDTH = 72
"""Of SigLIP so400m; shapes do not determine it."""


def siglip_config(shapes: Shapes) -> dict[str, Any]:
    """Return the arguments of transformers' SiglipVisionConfig. Raises KeyError if a needed key is missing."""
    width, _, patch, _ = shapes["embeddings.patch_embedding.weight"]
    side = round(shapes["embeddings.position_embedding.weight"][0] ** 0.5)
    return {
        "hidden_size": width,
        "intermediate_size": shapes["encoder.layers.0.mlp.fc1.weight"][0],
        "num_hidden_layers": count(shapes, r"encoder\.layers\.\d+\.mlp\.fc1\.weight"),
        "num_attention_heads": max(1, width // HEAD_WIDTH),
        "image_size": 384 if (side, patch) == (27, 14) else side * patch,  # six pixels are left over
        "patch_size": patch,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
    }


LAYOUTS = {
    DENOISER: Layout(make=lambda shapes: FramePackTransformer(FramePackParams.of(shapes)), quantizable=LINEAR),
    **TEXT_LAYOUTS,
    IMAGE_ENCODER: Layout(
        make=lambda shapes: make_text_encoder("SiglipVisionModel", "SiglipVisionConfig", siglip_config(shapes))
    ),
}


def place(components: Components, placement: Placement, device: torch.device) -> None:
    """Move the transformer to the device, quantized and with swapped blocks as the options specify: 26 GB in bf16."""
    transformer = cast(FramePackTransformer, components.denoiser)
    counts = swap_counts(placement.swapped_blocks)
    blocks = (transformer.transformer_blocks, transformer.single_transformer_blocks)
    kinds: Any = zip(blocks, counts, strict=True)
    place_transformer(transformer, kinds, placement.quantization, device, few_tokens=Modulation)


def problems(sources: Mapping[str, WeightSource], settings: Settings) -> list[str]:
    """Return problems of components of a different model, and of options that the transformer limits."""
    transformer: Any = sources[DENOISER].empty
    params: FramePackParams = transformer.params
    model = f"a model with {params.double_blocks} double and {params.single_blocks} single blocks"
    most = max_blocks_to_swap(params.double_blocks, params.single_blocks)
    encoder: Any = sources[IMAGE_ENCODER].empty if IMAGE_ENCODER in sources else None
    widths = []
    if encoder is not None and encoder.config.hidden_size != params.image_width:
        widths.append(
            f"image_encoder: '{sources[IMAGE_ENCODER].path}' produces vectors of {encoder.config.hidden_size} values, "
            f"but the transformer expects {params.image_width}; choose the SigLIP image encoder of FramePack"
        )
    return [
        *width_problems(sources, params),
        *widths,
        *swap_problems(settings.get(MemoryOptions), most, model),
        *network_problems(sources[DENOISER], lora.TRANSFORMER, settings),
    ]
