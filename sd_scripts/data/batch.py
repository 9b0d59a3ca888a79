"""Define the batch of one micro-step: samples of one bucket with their captions."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.sources.captions import Caption
from sd_scripts.data.sources.images import Pixels


@dataclass(kw_only=True)
class Batch:
    """One micro-batch, on the CPU as the loader's workers made it. S is (H, W), for clips (frames, H, W)."""

    extent: Extent
    """Of each sample, in pixels and frames."""
    captions: list[Caption]
    """Captions after the caption pipeline, as the text encoders receive them."""
    pixels: Tensor | None
    """(B, 3, *S) float32 in -1..1, flipped and cropped; None where latents are cached. A family of clips has an axis of
    frames for images too."""
    latents: Tensor | None
    """(B, C, *S) of latents, as the cache stores them, not scaled by the objective; None where pixels are given."""
    text: dict[str, Tensor] = field(default_factory=dict)
    """Cached outputs of the text encoders by name, batch first; empty where captions are encoded in the step."""
    conditioning: dict[str, Tensor] = field(default_factory=dict)
    """The family's further inputs besides latents and text, by name, batch first."""
    controls: tuple[Tensor, ...] = ()
    """The control images or clips in order, as pixels (B, 3, *S) or as latents (B, C, *S), like the samples."""
    loss_weight: Tensor
    """(B,) float32: 1, or prior_loss_weight for a regularisation image."""
    mask: Tensor | None
    """(B, 1, H, W) float32 in 0..1: how much each pixel counts; None without masked_loss and alpha_mask."""
    bucket: Extent
    """The bucket of the samples: their extent, which is smaller at high noise with highnoise_resolution."""
    high_noise: bool | None = None
    """As in PlannedBatch."""

    def __len__(self) -> int:
        return len(self.captions)

    def pin_memory(self) -> "Batch":
        """Return a copy in page-locked memory, which allows asynchronous copies to the GPU."""
        pinned = {each.name: _pinned(getattr(self, each.name)) for each in dataclasses.fields(self)}
        return Batch(**pinned)


def stack_by_name(samples: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Stack the tensors of each name; where lengths differ, shorter ones are padded with zeros at their ends."""
    return {name: _stack_padded([each[name] for each in samples]) for name in samples[0]}


def _stack_padded(tensors: Sequence[Tensor]) -> Tensor:
    longest = [max(sides) for sides in zip(*(tensor.shape for tensor in tensors), strict=True)]
    return torch.stack([tensor if list(tensor.shape) == longest else _padded(tensor, longest) for tensor in tensors])


def _padded(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    missing = [(0, want - have) for want, have in zip(shape, tensor.shape, strict=True)]
    return functional.pad(tensor, [count for pair in reversed(missing) for count in pair])  # the last side comes first


def _pinned(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.contiguous().pin_memory()  # rows that share memory cannot be pinned in place
    if isinstance(value, dict):
        return {name: _pinned(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_pinned, value))
    return value


def stack_pixels(images: Sequence[Pixels]) -> Tensor:
    """Stack images (H, W, 3) or clips (F, H, W, 3) of one size to (B, 3, *S) float32 in -1..1."""
    stacked = torch.from_numpy(np.stack(images)).movedim(-1, 1)
    return stacked.to(torch.float32, memory_format=torch.contiguous_format).div_(127.5).sub_(1)
