"""Encode captions as HunyuanVideo does, and images with SigLIP, which FramePack reads, too."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sd_scripts.data.batch import stack_pixels
from sd_scripts.data.sources.captions import Caption
from sd_scripts.data.sources.images import read_image
from sd_scripts.families.common.encoders import llama as base
from sd_scripts.families.common.encoders.captions import with_images
from sd_scripts.families.common.family import Components, TextOptions, Tokens
from sd_scripts.families.common.sampling import prompt_captions as common_captions
from sd_scripts.options.generating.prompt_lines import SamplePrompt

SIGLIP = 2
"""Index of the image encoder among the encoders."""
IMAGE = "image_embeddings"
OUTPUTS = replace(base.OUTPUTS, whole=(*base.OUTPUTS.whole, IMAGE))


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    """Like tokenize of HunyuanVideo; if captions have images, also the pixels of the first one of each, as SigLIP reads
    them, and which captions have one, seen (B,)."""
    tokens = base.tokenize(components, captions, options)
    if any(caption.images for caption in captions):
        read = [_pixels(components, caption) for caption in captions]
        tokens[SIGLIP] = {
            "pixels": torch.cat(read),
            "seen": torch.tensor([bool(caption.images) for caption in captions]),
        }
    return tokens


def _pixels(components: Components, caption: Caption) -> Tensor:
    if not caption.images:
        return siglip_pixels(components, torch.zeros(1, 3, 1, 1))
    pixels = stack_pixels([read_image(caption.images[0])[0]])
    return siglip_pixels(components, pixels.flip(-1) if caption.flipped else pixels)


def siglip_pixels(components: Components, pixels: Tensor) -> Tensor:
    """Resize images (B, 3, H, W) in -1..1 to SigLIP's square, whatever their shape."""
    encoder: Any = components.text_encoders[SIGLIP]
    side = encoder.config.image_size
    return F.interpolate(pixels.float(), (side, side), mode="bicubic", antialias=True).clamp(-1, 1)


def encode_text(components: Components, tokens: Tokens) -> dict[str, Tensor]:
    """Like encode_text of HunyuanVideo; if captions have images also image_embeddings (B, 729, 1152), 0 for others."""
    outputs = base.encode_text(components, tokens)
    if SIGLIP in tokens:
        seen = see(components, tokens[SIGLIP]["pixels"])
        outputs[IMAGE] = seen * tokens[SIGLIP]["seen"].to(seen.device)[:, None, None]
    return outputs


def see(components: Components, pixels: Tensor) -> Tensor:
    """Return SigLIP's last hidden states (B, 729, 1152) of pixels of its size."""
    encoder: Any = components.text_encoders[SIGLIP]
    weight = next(encoder.parameters())
    hidden: Tensor = encoder(pixels.to(weight.device, weight.dtype)).last_hidden_state
    return hidden


def unseen(components: Components, count: int) -> Tensor:
    """Return the embeddings of no image, (B, 729, 1152): zeros."""
    encoder: Any = components.text_encoders[SIGLIP]
    tokens = (encoder.config.image_size // encoder.config.patch_size) ** 2
    return torch.zeros(count, tokens, encoder.config.hidden_size)


def encode_conditions(components: Components, pixels: Tensor) -> dict[str, Tensor]:
    """Return SigLIP's embeddings of the first frame of clips (B, 3, F, H, W). An image is not shown to the model, which
    predicts it: its embeddings are zeros."""
    if pixels.shape[2] == 1:
        return {IMAGE: unseen(components, len(pixels))}
    return {IMAGE: see(components, siglip_pixels(components, pixels[:, :, 0])).float().cpu()}


def trim_text(text: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the outputs of one caption without padding, and without the embeddings of no image."""
    trimmed = OUTPUTS.trim(text)
    return trimmed if IMAGE in trimmed and trimmed[IMAGE].any() else {n: t for n, t in trimmed.items() if n != IMAGE}


def prompt_captions(prompt: SamplePrompt) -> list[Caption]:
    """Return the captions of a prompt with its start image, or the control images of a single frame."""
    names = (prompt.start_image,) if prompt.start_image else prompt.control_images
    return with_images(common_captions(prompt, unset=None), names)
