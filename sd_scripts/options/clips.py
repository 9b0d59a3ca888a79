"""Options: how clips become samples."""

from collections.abc import Iterable
from typing import Literal

from sd_scripts.formats.words import is_whole_number
from sd_scripts.options.spec import OptionGroup, option, optional

MOST_FRAMES = 10_000
"""Frames of a sample, more than any GPU can train."""


def frame_counts(text: str) -> tuple[int, ...]:
    """Parse numbers of frames from "1,25,45". Raises ValueError, to follow the option's name."""
    parts = [part.strip() for part in text.split(",")]
    if not all(is_whole_number(part) and 1 <= int(part[:9]) <= MOST_FRAMES for part in parts):
        raise ValueError(f"{text!r} is not a list of frame counts from 1 to {MOST_FRAMES:,}; write 25 or 1,25,45")
    return tuple(map(int, parts))


class ClipOptions(OptionGroup, title="Clips", needs="clips"):
    """Which parts of a video are trained, and at how many frames per second."""

    target_frames: str | None = optional(
        "Frames of a sample, or several lengths, each with samples of its own: 1,25,45. Rounded down to lengths that "
        "the model can have, such as 4n + 1. Clips that are shorter are skipped. "
        "Default: each clip as a whole, up to max_frames; lengths that vary then make smaller batches and more graphs.",
        label="Frames",
        placeholder="such as 49",
        suggestions=("17", "33", "49", "81"),
    )
    frame_extraction: Literal["head", "chunk", "slide", "uniform", "full"] = option(
        "head",
        "Which parts of a clip become samples: head is its start, chunk cuts it into parts without overlap, slide "
        "starts one every frame_stride frames, uniform spreads frame_sample of them evenly, full is the whole clip up "
        "to max_frames.",
        label="Parts of a clip",
    )
    frame_stride: int = option(
        1, "Frames between the starts of two samples with slide.", label="Frame stride", within=(1, MOST_FRAMES)
    )
    frame_sample: int = option(1, "Samples of each clip and length with uniform.", label="Samples", within=(1, 1000))
    max_frames: int = option(
        129, "The most frames of a sample that is a whole clip.", label="Most frames", within=(1, MOST_FRAMES)
    )
    source_fps: float | None = optional(
        "Frames per second of the clips. Default: as their files state; a folder of images has no rate, and all of its "
        "frames are used.",
        label="Frames per second of the files",
        within=(0.1, 1000.0),
    )
    target_fps: float | None = optional(
        "Frames per second at which clips are trained; of faster clips, frames are left out. 0 keeps all frames, so "
        "that faster clips move more slowly. Default: the model's own rate.",
        label="Frames per second of the samples",
        within=(0.0, 1000.0),
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if self.target_frames:
            try:
                frame_counts(self.target_frames)
            except ValueError as error:
                yield "target_frames", str(error)
