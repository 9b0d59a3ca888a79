"""Define the batch of one micro-step: images of one bucket with their captions."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(kw_only=True)
class Batch:
    """One micro-batch, on the CPU as the loader's workers made it; sizes are (height, width), as SDXL expects."""

    keys: list[str]
    """One name for each image: its path."""
    captions: list[str]
    """Captions after the caption pipeline, as the text encoders receive them."""
    pixels: Tensor | None
    """(B, 3, H, W) float32 in -1..1, flipped and cropped; None where latents are cached."""
    latents: Tensor | None
    """(B, C, H/8, W/8) float32, as the cache stores them (SDXL: not yet scaled); None where pixels are given."""
    text: dict[str, Tensor] = field(default_factory=dict)
    """Cached outputs of the text encoders by name, batch first; empty where captions are encoded in the step."""
    original_size: Tensor
    """(B, 2) int64: height and width of each image before resizing."""
    crop_top_left: Tensor
    """(B, 2) int64: top and left of the crop."""
    target_size: Tensor
    """(B, 2) int64: height and width of the bucket."""
    loss_weight: Tensor
    """(B,) float32: 1, or prior_loss_weight for a regularisation image."""
    mask: Tensor | None
    """(B, 1, H, W) float32 in 0..1: how much each pixel counts; None without masked_loss and alpha_mask."""
    custom_attributes: list[dict[str, Any]] = field(default_factory=list)
    """The custom_attributes of each image's subset."""

    def __len__(self) -> int:
        return len(self.keys)

    def pin_memory(self) -> "Batch":
        """Return a copy in page-locked memory, which allows asynchronous copies to the GPU."""
        pinned = {each.name: _pinned(getattr(self, each.name)) for each in dataclasses.fields(self)}
        return Batch(**pinned)


def _pinned(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.contiguous().pin_memory()  # rows that share memory cannot be pinned as they lie
    if isinstance(value, dict):
        return {name: _pinned(each) for name, each in value.items()}
    return value
