"""Which latent frames of a clip a section predicts, which ones it sees, and at which places.

A clip is its start image and sections of nine latent frames each. FramePack generates the last section first, and each
sees the start image and what follows it; FramePack F1 generates them in order, and each sees the start image and what
precedes it. Of what is known, the nearest frame is seen in full, two more in larger patches and 16 in even larger ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sd_scripts.families.framepack.card.options import FramePackOptions
from sd_scripts.families.framepack.model import Known

WINDOW = 9
"""Latent frames of a section."""
FAR, MIDDLE = 16, 2
"""Frames that are seen in patches of 4x and of 2x."""
HISTORY = FAR + MIDDLE + 1
BEFORE = (-1, 0), (-1 - MIDDLE, -1), (-HISTORY, -1 - MIDDLE)
AFTER = (WINDOW, WINDOW + 1), (WINDOW + 1, WINDOW + 1 + MIDDLE), (WINDOW + 1 + MIDDLE, WINDOW + HISTORY)
"""Frames that a section sees, from near to far, counted from its first one."""
NONE = -1
"""Number of a frame that does not exist, which is seen as zeros."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Numbers of latent frames, 0 is the start image, and their places for the rotary embedding, int64."""

    frames: Tensor
    places: Tensor
    known: tuple[tuple[Tensor, Tensor, int], ...]
    """Frames, places and factor of the patches, from near to far."""

    def split(self, latents: Tensor) -> tuple[Tensor, list[Known]]:
        """Return the latents (B, C, 9, h, w) to predict, and those that are seen, of a clip's (B, C, f, h, w)."""
        return taken(latents, self.frames), [(taken(latents, frames), at, by) for frames, at, by in self.known]


def taken(latents: Tensor, frames: Tensor) -> Tensor:
    """Return the frames of latents (B, C, f, h, w) with these numbers; zeros for those that do not exist."""
    there = (frames >= 0) & (frames < latents.shape[2])
    picked = latents.index_select(2, frames.clamp(0, latents.shape[2] - 1))
    return picked * there.to(picked.dtype)[:, None, None]


def count_sections(latent_frames: int) -> int:
    """Return how many whole sections a clip has after its start image."""
    return (latent_frames - 1) // WINDOW


def paddings(sections: int) -> list[int]:
    """Return how many sections away from the start each one is placed, in temporal order: in long clips those in the
    middle are all placed at 2, since the model was trained with few."""
    if sections <= 4:
        return list(range(sections))
    return [0, 1, *[2] * (sections - 3), 3]


def section_of(number: Tensor | int, sections: int, device: torch.device, *, f1: bool) -> Section:
    """Return section `number`, in temporal order, of a clip with this many. A number in a tensor is not read."""
    first = 1 + WINDOW * number
    place = 1 + (HISTORY if f1 else WINDOW * torch.tensor(paddings(sections), device=device)[number])

    def counted(begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Return frames, counted from the section's first one, and their places."""
        offsets = torch.arange(begin, end, device=device)
        return first + offsets, place + offsets

    frames, places = counted(0, WINDOW)
    near, middle, far = (counted(*span) for span in (BEFORE if f1 else AFTER))
    start = torch.zeros(1, dtype=torch.int64, device=device)
    full = torch.cat((start, near[0])), torch.cat((start, near[1]))
    return Section(frames=frames, places=places, known=((*full, 1), (*middle, 2), (*far, 4)))


def single_frame(options: FramePackOptions, device: torch.device) -> Section:
    """Return an image as a section of one frame, which sees no frames: what stands for the start image is NONE, and may
    be replaced by control images."""
    clean = list(options.clean_places)
    if not options.fp_1f_no_post:
        clean.append(WINDOW + 1)
    seen = [(clean, 1)]
    if not options.one_frame_no_2x:
        seen.append((list(range(WINDOW + 2, WINDOW + 2 + MIDDLE)), 2))
    if not options.one_frame_no_4x:
        seen.append((list(range(WINDOW + 2 + MIDDLE, WINDOW + 2 + MIDDLE + FAR)), 4))
    known = tuple(
        (torch.full((len(places),), NONE, device=device), torch.tensor(places, device=device), by)
        for places, by in seen
    )
    target = torch.tensor([options.fp_1f_target_index], device=device)
    return Section(frames=torch.zeros(1, dtype=torch.int64, device=device), places=target, known=known)


def with_controls(known: list[Known], controls: Sequence[Tensor], places: Sequence[int]) -> list[Known]:
    """Return the frames that a single frame sees, with the latents of its control images, each (B, C, 1, h, w), at
    these places instead of zeros. Raises ValueError if there are more images than places."""
    if len(controls) > len(places):
        raise ValueError(
            f"fp_1f_clean_indices: {len(controls)} control images need a place each, such as 0,10, but it has "
            f"{len(places)}"
        )
    (clean, at, by), *others = known
    return [(torch.cat((*controls, clean[:, :, len(controls) :]), dim=2), at, by), *others]
