"""Chooses the parts of a clip that become samples, as musubi-tuner does: how many frames, and where they start."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, repeat
from typing import Literal

from sd_scripts.formats.clips.probe import Probe

Extraction = Literal["head", "chunk", "slide", "uniform", "full"]
AS_FAST = 1.005
"""Relative difference in rate up to which all frames are kept: 30 frames per second are often 29.97 or 30.03."""


@dataclass(frozen=True, kw_only=True)
class ClipRules:
    """How a subset's clips become samples; fields are named like the options."""

    frame_extraction: Extraction = "head"
    target_frames: tuple[int, ...] = ()
    """Empty: whole clips, as by the extraction full."""
    frame_stride: int = 1
    frame_sample: int = 1
    max_frames: int = 129
    source_fps: float | None = None
    target_fps: float = 0
    """0: all frames of each clip."""
    frame_step: int = 4
    """Samples have a multiple of this number of frames, plus one; follows from the family."""
    shortest: int = 1
    """Frames of the shortest sample; follows from the family."""

    @property
    def extraction(self) -> Extraction:
        """The extraction that takes place: one sample of uniform is the head."""
        if not self.target_frames:
            return "full"
        return "head" if self.frame_extraction == "uniform" and self.frame_sample == 1 else self.frame_extraction

    @property
    def lengths(self) -> list[int]:
        """The target_frames, cut to lengths that the family can train, each once, shortest first."""
        lengths = {self.fitting(length) for length in self.target_frames}
        return sorted(length for length in lengths if length >= self.shortest)

    def fitting(self, frames: int) -> int:
        """Return the largest number of frames of a sample in a clip of `frames`, at least 1."""
        return (frames - 1) // self.frame_step * self.frame_step + 1


@dataclass(frozen=True, kw_only=True)
class Span:
    """A part of a clip that is a sample."""

    start: int
    """Its first frame, counted at the trained rate."""
    times: tuple[int, ...]
    """When its frames are shown, as Probe.times has them."""

    @property
    def frames(self) -> int:
        return len(self.times)

    def __str__(self) -> str:
        return f"{self.start:05d}-{self.frames:03d}"


def spans(clip: Probe, rules: ClipRules) -> list[Span]:
    """Return the samples of a clip, by length and start; none if it is too short."""
    times = trained_times(clip, rules)
    windows = dict.fromkeys(extract(len(times), rules))
    return [Span(start=start, times=tuple(times[start : start + length])) for start, length in windows]


def extract(count: int, rules: ClipRules) -> Iterator[tuple[int, int]]:
    """Yield (start, length) of each sample of a clip of `count` frames; uniform may yield the same ones again."""
    if rules.extraction == "full":
        if count and (length := rules.fitting(min(count, rules.max_frames))) >= rules.shortest:
            yield 0, length
        return
    for length in rules.lengths:
        yield from ((start, length) for start in _starts(count - length, length, rules))


def _starts(last: int, length: int, rules: ClipRules) -> Sequence[int]:
    """Return where samples of a length start; `last`: the last frame at which one could."""
    if last < 0:
        return ()
    match rules.extraction:
        case "chunk":
            return range(0, last + 1, length)
        case "slide":
            return range(0, last + 1, rules.frame_stride)
        case "uniform":
            return [last * place // (rules.frame_sample - 1) for place in range(rules.frame_sample)]
        case _:
            return (0,)


def is_slow(clip: Probe, rules: ClipRules) -> bool:
    """Return whether a clip has too few frames for the trained rate, so that it is shown faster than it was."""
    source = rules.source_fps or clip.fps
    return source is not None and source * AS_FAST < rules.target_fps


def trained_times(clip: Probe, rules: ClipRules) -> Sequence[int]:
    """Return the times of the frames that are left at the trained rate. None is repeated: a slower clip is kept as it
    is."""
    source, target = rules.source_fps or clip.fps, rules.target_fps
    if not source or not target or source <= target * AS_FAST:
        return clip.times
    if rules.source_fps or clip.is_even:
        return [clip.times[index] for index in kept_frames(clip.frames, source, target)]
    # times are rounded to the time base, by up to one unit between two frames
    places = (math.floor((time - clip.times[0] + 1) * clip.time_base * Fraction(target)) for time in clip.times)
    return [time for time, _ in _changes(zip(clip.times, places, strict=True))]


def kept_frames(count: int, source: float, target: float) -> list[int]:
    """Return the frames of a clip of `source` frames per second that are left at `target`.

    The sum of floats decides in which frame a whole number is reached: the samples equal musubi-tuner's.
    """
    places = accumulate(repeat(target / source), initial=0.0)
    return [
        index for index, _ in _changes((index, int(place)) for index, place in zip(range(count), places, strict=False))
    ]


def _changes(places: "Iterator[tuple[int, int]]") -> Iterator[tuple[int, int]]:
    """Yield the pairs whose second number differs from the one before."""
    before = -1
    for value, place in places:
        if place != before:
            before = place
            yield value, place
