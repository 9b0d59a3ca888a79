"""Qwen-Image-Edit in miniature: Qwen-Image's, whose text encoder has a vision tower of the real layout, and a grey
control image for each of its images."""

from pathlib import Path

import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from sd_scripts.families.qwen_image import card as qwen_image
from sd_scripts.families.qwen_image import tiny
from sd_scripts.families.qwen_image.load import TEXT_ENCODER
from sd_scripts.families.qwen_image_edit.card import CARD
from sd_scripts.families.qwen_image_edit.load import HEAD_WIDTH, WHOLE_IMAGE
from sd_scripts.testing import miniature
from sd_scripts.testing.miniature import Miniature, randomize, states_of, with_controls

VISION = {
    **tiny.VISION,
    "depth": WHOLE_IMAGE,  # so that one block sees the whole image
    "hidden_size": HEAD_WIDTH,
    "num_heads": 1,
    "fullatt_block_indexes": [WHOLE_IMAGE - 1],
}


@torch.no_grad()
def tiny_encoder(encoder: Qwen2_5_VLForConditionalGeneration) -> Qwen2_5_VLForConditionalGeneration:
    """Return an encoder with a different vision tower, random and the same at every call, and the same language
    model."""
    image_token = tiny.qwen_tokenizer().convert_tokens_to_ids("<|image_pad|>")
    config = Qwen2_5_VLConfig(
        text_config=encoder.config.text_config.to_dict(), vision_config=VISION, image_token_id=image_token
    )
    visual_encoder = Qwen2_5_VLForConditionalGeneration(config)
    randomize(visual_encoder, torch.Generator().manual_seed(0))
    visual_encoder.load_state_dict({k: t for k, t in encoder.state_dict().items() if "visual." not in k}, strict=False)
    return visual_encoder


def write_miniature(folder: Path) -> Miniature:
    """Create the model's files, the tokenizer next to them, captioned images, and their control images."""
    tokenizer = tiny.qwen_tokenizer()
    modules = tiny.tiny_modules(len(tokenizer))
    modules[TEXT_ENCODER] = tiny_encoder(modules[TEXT_ENCODER])  # type: ignore[arg-type]
    made = miniature.write_miniature(qwen_image.CARD, folder, (tokenizer,), states_of(modules))
    return with_controls(made, CARD.name, folder)
