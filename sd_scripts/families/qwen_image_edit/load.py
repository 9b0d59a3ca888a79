"""Qwen-Image-Edit's components: Qwen-Image's, with the vision tower in the text encoder."""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import Qwen2_5_VLTextModel
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig, Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

from sd_scripts.families.common.components import DENOISER, Components, WeightSource
from sd_scripts.families.qwen_image import load as base
from sd_scripts.families.qwen_image.card import ZERO_COND_T
from sd_scripts.families.qwen_image.card.options import QwenImageModelOptions
from sd_scripts.families.qwen_image.keys import language_config, language_model
from sd_scripts.families.qwen_image.load import TEXT_ENCODER
from sd_scripts.families.qwen_image.model import QwenImageTransformer
from sd_scripts.families.qwen_image_edit.card import EDIT_2511, EDIT_PLUS, folder_version, is_edit_2511, told_version
from sd_scripts.families.qwen_image_edit.text import VERSION
from sd_scripts.families.qwen_image_edit.vision import MERGED
from sd_scripts.formats.models.safetensors_header import read_header
from sd_scripts.library.files.state_dicts import Shapes, State, count

VISUAL = "visual."
HEAD_WIDTH = 80
"""The same for the vision tower of every Qwen2.5-VL; shapes do not determine it."""
WHOLE_IMAGE = 8
"""In the vision tower, every this many blocks one sees the whole image, the others see windows of it."""


class VisionLanguageModel(Qwen2_5_VLTextModel):
    """The language model of Qwen2.5-VL under its own names, with the vision tower next to its layers."""

    def __init__(self, language: Qwen2_5_VLTextConfig, vision: Qwen2_5_VLVisionConfig):
        super().__init__(language)
        self.visual = Qwen2_5_VisionTransformerPretrainedModel(vision)


def vision_language_model(file: State) -> State:
    """Return the language model and the vision tower, which transformers 5 writes as `model.visual.`."""
    seeing = {f"{VISUAL}{key.partition(VISUAL)[2]}": tensor for key, tensor in file.items() if VISUAL in key}
    spoken = {key: tensor for key, tensor in language_model(file).items() if not key.startswith(VISUAL)}
    return spoken | seeing


def vision_config(shapes: Shapes) -> dict[str, Any]:
    """Return the arguments of transformers' Qwen2_5_VLVisionConfig. Raises KeyError if a needed key is missing."""
    width, channels, frames, patch, _ = shapes[f"{VISUAL}patch_embed.proj.weight"]
    depth = count(shapes, rf"{VISUAL}blocks\.\d+\.mlp\.gate_proj\.weight")
    return {
        "depth": depth,
        "hidden_size": width,
        "num_heads": width // HEAD_WIDTH,
        "intermediate_size": shapes[f"{VISUAL}blocks.0.mlp.gate_proj.weight"][0],
        "in_channels": channels,
        "temporal_patch_size": frames,
        "patch_size": patch,
        "spatial_merge_size": MERGED,
        "out_hidden_size": shapes[f"{VISUAL}merger.mlp.2.weight"][0],
        "fullatt_block_indexes": list(range(WHOLE_IMAGE - 1, depth, WHOLE_IMAGE)),
    }


def make_encoder(shapes: Shapes) -> VisionLanguageModel:
    vision = Qwen2_5_VLVisionConfig(**vision_config(shapes))
    return VisionLanguageModel(Qwen2_5_VLTextConfig(**language_config(shapes)), vision)


def without_mark(file: State) -> State:
    return {key: tensor for key, tensor in file.items() if key != ZERO_COND_T}


LAYOUTS = {
    **base.LAYOUTS,
    DENOISER: replace(base.LAYOUTS[DENOISER], unify=without_mark),
    TEXT_ENCODER: replace(base.LAYOUTS[TEXT_ENCODER], make=make_encoder, unify=vision_language_model),
}


def problems(sources: Mapping[str, WeightSource], options: QwenImageModelOptions) -> list[str]:
    """Return the problems of Qwen-Image, of a model_version that is not the model's, and of
    a text encoder whose parts are of different models."""
    sentences = base.problems(sources)
    if encoder := sources.get(TEXT_ENCODER):
        language: Any = encoder.empty
        seen, read = language.visual.config.out_hidden_size, language.config.hidden_size
        if seen != read:
            why = f"has a vision tower for {seen} values, but its language model reads {read}; choose another file"
            sentences.append(f"text_encoder: '{encoder.path}' {why}")
    version, model = options.model_version, Path(sources[DENOISER].path)
    if version and version != EDIT_2511 and _version_of(model) == EDIT_2511:
        why = f"'{model}' is Qwen-Image-Edit-2511; set edit-2511 or leave it unset"
        sentences.append(f"model_version: {version} is not the model's version: {why}")
    return sentences


def prepare(components: Components, options: QwenImageModelOptions) -> None:
    """Note which version is trained: model_version, else the version in the model's folder or file, else edit-2509."""
    version = options.model_version or _version_of(Path(components.source)) or EDIT_PLUS
    components.extras[VERSION] = version
    if version == EDIT_2511 and (source := components.sources.get(DENOISER)):
        components.sources[DENOISER] = replace(source, finish=_zero_cond_t)


def _zero_cond_t(transformer: QwenImageTransformer) -> None:
    transformer.zero_cond_t = True


def _version_of(model: Path) -> str | None:
    if not model.is_file():
        return folder_version(model)
    if is_edit_2511(model.parent):  # the first of the shards
        return EDIT_2511
    with contextlib.suppress(OSError, ValueError):
        return told_version(read_header(model))
    return None
