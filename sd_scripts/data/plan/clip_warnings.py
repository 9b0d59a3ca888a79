"""Warnings about clips that are skipped, or trained in an unexpected way."""

from collections.abc import Mapping

from sd_scripts.data.plan.blueprint import Subset
from sd_scripts.data.plan.counted_warnings import Warn
from sd_scripts.formats.clips.probe import Probe
from sd_scripts.formats.clips.spans import ClipRules, is_slow, trained_times
from sd_scripts.formats.words import counted, some

MANY_LENGTHS = 8
"""Lengths of clips of one subset beyond which a plan advises to set target_frames."""


def warn_about_clips(clips: Mapping[str, Probe], subset: Subset, warn: Warn) -> None:
    """Warn about the clips of a subset, by file name."""
    rules = subset.clips
    counts = {name: len(trained_times(clip, rules)) for name, clip in clips.items()}
    if rules.extraction == "full":
        _warn_about_many_lengths(
            {rules.fitting(min(count, rules.max_frames)) for count in counts.values()}, subset, warn
        )
    else:
        _warn_about_target_frames(subset, warn)
    _warn_about_short_clips(counts, subset, warn)
    _warn_about_slow_clips(clips, subset, warn)


def _warn_about_many_lengths(lengths: set[int], subset: Subset, warn: Warn) -> None:
    if len(lengths) > MANY_LENGTHS:
        warn(
            f"target_frames: the clips in {subset.name!r} have {len(lengths)} lengths, each with batches and graphs of "
            "its own; set target_frames to a few"
        )


def _warn_about_target_frames(subset: Subset, warn: Warn) -> None:
    rules = subset.clips
    if rounded := set(rules.target_frames) - set(rules.lengths):
        fitting = ", ".join(map(str, rules.lengths)) or "none"
        names = ", ".join(map(str, sorted(rounded)))
        warn(
            f"target_frames: {names} of {subset.name!r} is rounded down, since the model is trained on multiples of "
            f"{rules.frame_step} frames and one more; {fitting} are trained"
        )
    if rules.frame_extraction == "uniform" and rules.frame_sample == 1:
        warn(f"frame_sample: 1 with uniform takes the start of each clip in {subset.name!r}; set it to 2 or more")


def _warn_about_short_clips(counts: Mapping[str, int], subset: Subset, warn: Warn) -> None:
    rules = subset.clips
    needed = min(rules.lengths, default=rules.shortest)
    if short := [f"{name} ({count})" for name, count in counts.items() if count < needed]:
        verb = "is" if len(short) == 1 else "are"
        rate = f" at {rules.target_fps:g} per second" if rules.target_fps else ""
        warn(
            f"target_frames: {counted(len(short), 'clip')} in {subset.name!r} {verb} skipped, with fewer than "
            f"{counted(needed, 'frame')}{rate}: {some(short)}"
        )


def _warn_about_slow_clips(clips: Mapping[str, Probe], subset: Subset, warn: Warn) -> None:
    rules = subset.clips
    if slow := [f"{name} ({_rate(clip, rules):g})" for name, clip in clips.items() if is_slow(clip, rules)]:
        have, they, move = ("has", "it", "moves") if len(slow) == 1 else ("have", "they", "move")
        warn(
            f"target_fps: {counted(len(slow), 'clip')} in {subset.name!r} {have} fewer frames per second than the "
            f"{rules.target_fps:g} that are trained, so {they} {move} faster than recorded: {some(slow)}"
        )


def _rate(clip: Probe, rules: ClipRules) -> float:
    return round(rules.source_fps or clip.fps or 0, 2)
