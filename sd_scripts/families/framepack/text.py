"""Encode captions as HunyuanVideo does, and images with SigLIP, which FramePack reads, too."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sd_scripts.data.batch import stack_pixels
from sd_scripts.data.sources.captions import Caption
from sd_scripts.data.sources.images import read_image
from sd_scripts.families.common.encoders import llama as base
from sd_scripts.families.common.encoders.captions import with_images
from sd_scripts.families.common.encoders.vision import no_siglip_states, siglip_pixels, siglip_states
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
        return siglip_pixels(components.text_encoders[SIGLIP], torch.zeros(1, 3, 1, 1))
    pixels = stack_pixels([read_image(caption.images[0])[0]])
    return siglip_pixels(components.text_encoders[SIGLIP], pixels.flip(-1) if caption.flipped else pixels)


def encode_text(components: Components, tokens: Tokens) -> dict[str, Tensor]:
    """Like encode_text of HunyuanVideo; if captions have images also image_embeddings (B, 729, 1152), 0 for others."""
    outputs = base.encode_text(components, tokens)
    if SIGLIP in tokens:
        seen = siglip_states(components.text_encoders[SIGLIP], tokens[SIGLIP]["pixels"])
        outputs[IMAGE] = seen * tokens[SIGLIP]["seen"].to(seen.device)[:, None, None]
    return outputs


def encode_conditions(components: Components, pixels: Tensor) -> dict[str, Tensor]:
    """Return SigLIP's embeddings of the first frame of clips (B, 3, F, H, W). An image is not shown to the model, which
    predicts it: its embeddings are zeros."""
    siglip = components.text_encoders[SIGLIP]
    if pixels.shape[2] == 1:
        return {IMAGE: no_siglip_states(siglip, len(pixels))}
    return {IMAGE: siglip_states(siglip, siglip_pixels(siglip, pixels[:, :, 0])).float().cpu()}


def trim_text(text: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the outputs of one caption without padding, and without the embeddings of no image."""
    trimmed = OUTPUTS.trim(text)
    return trimmed if IMAGE in trimmed and trimmed[IMAGE].any() else {n: t for n, t in trimmed.items() if n != IMAGE}


def prompt_captions(prompt: SamplePrompt) -> list[Caption]:
    """Return the captions of a prompt with its start image, or the control images of a single frame."""
    names = (prompt.start_image,) if prompt.start_image else prompt.control_images
    return with_images(common_captions(prompt, unset=None), names)
