"""Qwen-Image-Edit as a record for the trainer: Qwen-Image's parts, which see control images.

Qwen team, 2025. The transformer has the keys and shapes of Qwen-Image. The tokens of control images follow the noisy
image's (qwen_image/model.py), and the text encoder sees the images together with the caption.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from sd_scripts.families.common.family import DENOISER_ALONE, Components, ModelWeights
from sd_scripts.families.qwen_image.card import ZERO_COND_T
from sd_scripts.families.qwen_image.card.options import QwenImageModelOptions
from sd_scripts.families.qwen_image.family import QWEN_IMAGE
from sd_scripts.families.qwen_image_edit.card import ARCHITECTURES, CARD, EDIT_2511
from sd_scripts.families.qwen_image_edit.load import LAYOUTS, prepare, problems
from sd_scripts.families.qwen_image_edit.text import VERSION, encode_text, prompt_captions, text_cache_key, tokenize


def file_tensors(components: Components, weights: ModelWeights) -> Mapping[str, Tensor]:
    """Return the transformer, with ComfyUI's mark if it is Edit-2511."""
    mark = {ZERO_COND_T: torch.zeros(0)} if components.extras[VERSION] == EDIT_2511 else {}
    return {**weights.denoiser, **mark}


FAMILY = QWEN_IMAGE_EDIT = replace(
    QWEN_IMAGE,
    card=CARD,
    identity=replace(
        QWEN_IMAGE.identity,
        base_model_version=CARD.name,
        architecture=lambda components: ARCHITECTURES[components.extras[VERSION]],
    ),
    text=replace(
        QWEN_IMAGE.text,
        tokenize=tokenize,
        encode=encode_text,
        prompt_captions=prompt_captions,
        cache_suffix="qwen_image_edit_te",
        cache_key=text_cache_key,
        sees_controls=True,
    ),
    blocks=replace(QWEN_IMAGE.blocks, title=CARD.title),
    layouts=LAYOUTS,
    prepare=lambda components, settings: prepare(components, settings[QwenImageModelOptions]),
    problems=lambda sources, settings: problems(sources, settings[QwenImageModelOptions]),
    saving=replace(DENOISER_ALONE, tensors=file_tensors),
)
