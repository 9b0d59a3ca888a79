"""Which parts of a clip are trained, and at which rate: results of running musubi-tuner's own dataset classes."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.formats.clips.probe import Probe
from sd_scripts.formats.clips.spans import ClipRules, extract, is_slow, kept_frames, spans, trained_times

REFERENCE = json.loads((Path(__file__).parents[2] / "reference/fixtures_clips.json").read_text(encoding="utf-8"))
EXTRACTION = REFERENCE["frame_extraction"]
TICK = 512
"""Units of the time base between two frames."""


def clip(frames: int, fps: float = 16.0) -> Probe:
    base = 1 / (Fraction(fps).limit_denominator(1000) * TICK)
    return Probe(size=(64, 48), times=range(0, frames * TICK, TICK), time_base=base, fps=fps)


def rules_of(case: dict[str, Any]) -> ClipRules:
    own = {name: case[name] for name in ("frame_stride", "frame_sample", "max_frames") if name in case}
    return ClipRules(frame_extraction=case["mode"], target_frames=tuple(case["target_frames"]), **own)


def test_parts_of_clips_match_musubi() -> None:
    different = []
    for case in EXTRACTION["cases"]:
        rules = rules_of(case)
        assert (rules.lengths, rules.extraction) == (case["rounded_target_frames"], case["effective_mode"])
        for name, count in EXTRACTION["clips"].items():
            wanted = [tuple(item) for item in case["items"].get(name, [])]
            found = sorted(extract(count, rules))
            samples = [(span.start, span.frames) for span in spans(clip(count), rules)]
            if found != wanted or sorted(samples) != sorted(set(wanted)):
                different.append((case["mode"], name, found))
    assert not different


def test_frames_left_at_a_lower_rate_match_musubi() -> None:
    different = []
    for case in REFERENCE["fps_conversion"]:
        frames, source, target = case["frames"], case["source_fps"], case["target_fps"]
        for rules in (ClipRules(target_fps=target), ClipRules(target_fps=target, source_fps=source)):
            found = [time // TICK for time in trained_times(clip(frames, source), rules)]
            if found != case["kept"]:
                different.append((case, found))
    assert not different


def test_a_part_is_counted_at_the_trained_rate() -> None:
    limited = REFERENCE["fps_with_head_limit"]
    rules = ClipRules(target_fps=limited["target_fps"], target_frames=(limited["end"],))
    (span,) = spans(clip(limited["frames"], limited["source_fps"]), rules)
    assert [time // TICK for time in span.times] == limited["kept"]


def test_uneven_times_choose_frames_and_rounding_loses_none() -> None:
    milliseconds = Probe(size=(64, 48), times=(0, 33, 67, 100, 133, 167), time_base=Fraction(1, 1000), fps=29.94)
    assert trained_times(milliseconds, ClipRules(target_fps=30)) == milliseconds.times
    assert trained_times(milliseconds, ClipRules(target_fps=15)) == [0, 67, 133]
    pause = Probe(size=(64, 48), times=(0, 10, 20, 500, 1000, 1010), time_base=Fraction(1, 1000), fps=4.95)
    assert trained_times(pause, ClipRules(target_fps=2)) == [0, 500, 1000]
    assert pause.is_variable
    assert not milliseconds.is_variable


def test_a_slow_clip_keeps_its_frames_and_is_known() -> None:
    rules = ClipRules(target_fps=24)
    assert is_slow(clip(9, 16), rules)
    assert len(trained_times(clip(9, 16), rules)) == 9
    assert not is_slow(clip(9, 23.976), rules)
    assert len(trained_times(clip(9, 60), ClipRules(target_fps=0))) == 9


@pytest.mark.parametrize("frames", [0, 1, 4])
def test_a_short_clip_gives_whole_samples_or_none(frames: int) -> None:
    nothing = Probe(size=(64, 48), times=range(frames))
    assert [span.frames for span in spans(nothing, ClipRules())] == [1] * (frames > 0)
    assert spans(nothing, ClipRules(target_frames=(5,), frame_extraction="slide")) == []
    assert kept_frames(frames, 30, 16) == list(range(frames))[::2]
