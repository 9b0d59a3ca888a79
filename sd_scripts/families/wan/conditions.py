"""What Wan's image-to-video models read besides the noisy latents: the clip's first frame, in some also its last.

Twenty channels follow the noisy latents: a mask of the known frames, four channels for the four frames of a latent
frame, and the latents of a clip that is grey elsewhere. The models of Wan 2.1 also read CLIP's features of the images.

Fun-Control models read the latents of a control clip instead, and then those of the first frame alone, or zeros.
"""

from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from sd_scripts.families.common.components import Components
from sd_scripts.families.common.encoders.causal_vae import encode_clip
from sd_scripts.families.common.encoders.vision import clip_features
from sd_scripts.families.common.family import Conditions
from sd_scripts.families.wan.model import WanParams, WanTransformer

IMAGE_ENCODER = "image_encoder"
CONDITION, FEATURES = "condition", "clip_features"
CONTROL, START = "control", "start"
"""What Fun-Control models read: latents of a control clip (B, 16, f, h, w) and of the first frame (B, 16, 1, h, w)."""
READS_START = "reads_start"
"""Among the extras of components: whether a Fun-Control model is trained with the first frame too."""
MASK_CHANNELS = 4


def params_of(components: Components) -> WanParams:
    return cast(WanTransformer, components.denoiser).params


def condition_names(components: Components) -> tuple[str, ...]:
    """Return the names of the conditions that the model reads; none for text to video."""
    params = params_of(components)
    if params.in_channels == params.channels:
        return ()
    if follows_control(params):
        return (START, FEATURES) if components.extras.get(READS_START) else ()
    return (CONDITION, FEATURES) if params.image_width else (CONDITION,)


def reads_last_frame(params: WanParams) -> bool:
    """Return whether the model is given the last frame in training too: Wan 2.1 FLF2V."""
    return params.image_tokens is not None


def follows_control(params: WanParams) -> bool:
    """Return whether the model reads a control clip: Wan 2.1 Fun-Control."""
    return params.in_channels == 3 * params.channels


def input_channels(noisy: Tensor, conditions: Mapping[str, Tensor]) -> Tensor:
    """Return noisy latents (B, C, f, h, w), followed by the channels of what conditions them."""
    if CONTROL in conditions:
        later = noisy.shape[2] - 1
        start = conditions.get(START)
        first = torch.zeros_like(noisy) if start is None else F.pad(start, (0, 0, 0, 0, 0, later))
        return torch.cat((noisy, conditions[CONTROL], first), dim=1)
    return torch.cat((noisy, conditions[CONDITION]), dim=1) if CONDITION in conditions else noisy


def start_conditions(components: Components, first: Tensor) -> dict[str, Tensor]:
    """Return the inputs of a Fun-Control model that are made from first frames (B, 3, 1, H, W) in -1..1."""
    return {START: encode_clip(components.vae, first), FEATURES: see(components, first)}


def encode_conditions(components: Components, pixels: Tensor) -> dict[str, Tensor]:
    """Return the conditions of clips (B, 3, F, H, W) in -1..1, whose first frames are the images."""
    if follows_control(params_of(components)):
        return start_conditions(components, pixels[:, :, :1])
    last = pixels[:, :, -1:] if reads_last_frame(params_of(components)) else None
    return conditions_of(components, pixels[:, :, :1], pixels.shape[2], last)


def conditions_of(
    components: Components, first: Tensor | None, frames: int, last: Tensor | None = None
) -> dict[str, Tensor]:
    """Return condition (B, 20, f, h, w) for a clip of `frames` and, if the model reads them, clip_features (B, I, 1280)
    of its images (B, 3, 1, H, W): one of them may be missing."""
    known = first if first is not None else last
    assert known is not None, "a clip is made from its first or its last frame"
    filled = torch.zeros_like(known).expand(-1, -1, frames, -1, -1).clone()
    mask = known.new_zeros(len(known), frames)
    for frame, image in ((0, first), (frames - 1, last)):
        if image is not None:
            filled[:, :, frame] = image[:, :, 0]
            mask[:, frame] = 1
    latents = encode_clip(components.vae, filled)
    four = torch.cat((mask[:, :1].expand(-1, MASK_CHANNELS), mask[:, 1:]), dim=1)  # a frame of its own counts as four
    mask = four.unflatten(1, (-1, MASK_CHANNELS)).transpose(1, 2)[..., None, None]  # (B, 4, f, 1, 1)
    mask = mask.to(latents).expand(-1, -1, -1, *latents.shape[3:])
    conditions = {CONDITION: torch.cat((mask, latents), dim=1)}
    if FEATURES in condition_names(components):
        both = reads_last_frame(params_of(components))
        images = (first, last) if both else (known,)
        each = [see(components, image if image is not None else torch.zeros_like(known)) for image in images]
        conditions[FEATURES] = torch.cat(each, dim=1)
    return conditions


def see(components: Components, image: Tensor) -> Tensor:
    """Return CLIP's features (B, 257, 1280) of an image (B, 3, 1, H, W)."""
    return clip_features(components.others[IMAGE_ENCODER], image[:, :, 0])


CONDITIONS = Conditions(
    names=condition_names,
    encode=encode_conditions,
    components=(IMAGE_ENCODER,),
    shortest=2,
    control_clips=lambda components: follows_control(params_of(components)),
)
