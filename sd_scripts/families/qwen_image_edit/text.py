"""Tokenize captions with the control images that they are about, and encode both with Qwen2.5-VL."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.encoders.captions import padded_length, with_images
from sd_scripts.families.common.family import Components, TextOptions, Tokens
from sd_scripts.families.qwen_image import sampling as base_sampling
from sd_scripts.families.qwen_image.card import LONGEST
from sd_scripts.families.qwen_image.text import MASK, STATES, TEMPLATE
from sd_scripts.families.qwen_image_edit.card import EDIT, EDIT_2511, EDIT_PLUS
from sd_scripts.families.qwen_image_edit.vision import Grid, count_tokens, patches_of, positions_of
from sd_scripts.library.text.tokenizers import are_shipped
from sd_scripts.options.generating.prompt_lines import SamplePrompt

PREFIX = (
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. Generate a new image "
    "that meets the user's requirements while maintaining consistency with the original input where appropriate."
    "<|im_end|>\n<|im_start|>user\n"
)
"""What all versions were trained with before images and caption. Without an image it is Qwen-Image's."""
IMAGE = "<|image_pad|>"
SEEN = f"<|vision_start|>{IMAGE}<|vision_end|>"
"""An image in a text; the token in the middle is repeated for each that the vision tower makes."""
EXAMPLE_IDS = (
    *(151644, 8948, 198, 74785, 279, 1376, 4419, 315, 279, 1946, 2168, 320, 3423, 11, 6083, 11, 1379, 11, 10434, 11),
    *(6171, 11, 4004, 701, 1221, 10339, 1246, 279, 1196, 594, 1467, 7600, 1265, 11596, 476, 5602, 279, 2168, 13),
    *(19813, 264, 501, 2168, 429, 20027, 279, 1196, 594, 8502, 1393, 20337, 28137, 448, 279, 4024, 1946, 1380, 8311),
    *(13, 151645, 198, 151644, 872, 198, 151652, 151655, 151653, 151645, 198, 151644, 77091, 198),
)
"""Tokens of an image with the text around it by this package's tokenizer, which takes half a second to make."""
AREA = {EDIT: 1024 * 1024, EDIT_PLUS: 384 * 384, EDIT_2511: 384 * 384}
"""Pixels of an image that the text encoder sees, by version."""
VERSION = "version"
"""Key of the model_version among the extras of the components."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A caption in tokens, with its images' tokens."""

    ids: list[int]
    start: int
    """Tokens of the prefix, whose states are dropped."""
    places: list[int | Grid]
    """Parts of the sequence: numbers of text tokens, and grids of images."""


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    """Return ids (B, L), positions (B, 3, L), start (B,), where a caption with its images begins, and mask (B, T), its
    length; T is the longest one, rounded up in compiled runs. With images also `image` (B, L) bool, True at their
    tokens, pixels, their patches in a row, and grids (images, 3).

    The first version sees one image, and a caption is truncated as in Qwen-Image.
    """
    version = components.extras[VERSION]
    most = 1 if version == EDIT else None
    shown = [[(path, caption.flipped) for path in caption.images[:most]] for caption in captions]
    distinct = dict.fromkeys(image for each in shown for image in each)
    patches = {(path, flipped): patches_of(path, AREA[version], flipped=flipped) for path, flipped in distinct}
    grids = [[patches[image][1] for image in each] for each in shown]
    rows = [_row(components, caption.text, each) for caption, each in zip(captions, grids, strict=True)]

    longest = padded_length(max(len(row.ids) - row.start for row in rows), options.compiling)
    length = max(row.start for row in rows) + longest
    tokens = {
        "ids": torch.stack([_padded(torch.tensor(row.ids), length) for row in rows]),
        "positions": torch.stack([_padded(positions_of(row.places), length) for row in rows]),
        "start": torch.tensor([row.start for row in rows]),
        "mask": torch.stack([_padded(torch.ones(len(row.ids) - row.start).long(), longest) for row in rows]),
    }
    if patches:
        tokens |= {
            "image": torch.stack([_padded(_at_images(row.places), length) for row in rows]),
            "pixels": torch.cat([patches[image][0] for each in shown for image in each]),
            "grids": torch.tensor([(1, *grid) for each in grids for grid in each]),
        }
    return {0: tokens}


def _row(components: Components, text: str, grids: Sequence[Grid]) -> Row:
    tokenizer = components.tokenizers[0]
    version = components.extras[VERSION]
    prefix = PREFIX if grids else TEMPLATE.prefix
    images = [SEEN if version == EDIT else f"Picture {number}: {SEEN}" for number in range(1, len(grids) + 1)]
    before = len(tokenizer("".join((prefix, *images))).input_ids)
    start = len(tokenizer(prefix).input_ids)
    left: list[int] = tokenizer("".join((prefix, *images, text, TEMPLATE.suffix))).input_ids[: before + LONGEST]
    ids: list[int] = []
    places: list[int | Grid] = []
    mark = tokenizer.convert_tokens_to_ids(IMAGE)
    for grid in grids:
        place = left.index(mark)
        ids += left[:place] + [mark] * count_tokens(grid)
        places += [place, grid]
        left = left[place + 1 :]
    return Row(ids=ids + left, start=start, places=[*places, len(left)])


def _at_images(places: Sequence[int | Grid]) -> Tensor:
    parts = [torch.zeros(p) if isinstance(p, int) else torch.ones(count_tokens(p)) for p in places]
    return torch.cat(parts).bool()


def _padded(tensor: Tensor, length: int) -> Tensor:
    """Return (..., n) with zeros up to `length`: the content of padding has no effect, since attention is causal."""
    return functional.pad(tensor, (0, length - tensor.shape[-1]))


def encode_text(components: Components, tokens: Tokens) -> dict[str, Tensor]:
    """Like encode_text of Qwen-Image: the states include image tokens. Only the language model is
    trained with the text encoder."""
    if 0 not in tokens:
        return {}
    encoder: Any = components.text_encoders[0]
    inputs = {name: tensor.to(encoder.embed_tokens.weight.device) for name, tensor in tokens[0].items()}
    embedded = encoder.embed_tokens(inputs["ids"])
    if "pixels" in inputs:
        image_states = encoder.visual(inputs["pixels"].to(encoder.visual.dtype), grid_thw=inputs["grids"]).pooler_output
        embedded = embedded.masked_scatter(inputs["image"][..., None], image_states.to(embedded.dtype))
    positions = inputs["positions"].transpose(0, 1)  # (3, B, L)
    hidden = encoder(inputs_embeds=embedded, position_ids=positions, use_cache=False).last_hidden_state
    mask = inputs["mask"].bool()
    places = inputs["start"][:, None] + torch.arange(mask.shape[1], device=mask.device)
    hidden = hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))
    return {STATES: hidden * mask[..., None], MASK: mask}


def text_cache_key(components: Components, options: TextOptions) -> tuple[object, ...]:
    """Return everything besides encoder, caption and images that changes the outputs: tokens around these, and their
    size."""
    version = components.extras[VERSION]
    shipped = are_shipped(components.tokenizers)
    ids = EXAMPLE_IDS if shipped else components.tokenizers[0](f"{PREFIX}{SEEN}{TEMPLATE.suffix}").input_ids
    return (*ids, version, AREA[version])


def prompt_captions(prompt: SamplePrompt) -> list[Caption]:
    """Return the captions of Qwen-Image with the prompt's current control images."""
    return with_images(base_sampling.prompt_captions(prompt), prompt.control_images)
