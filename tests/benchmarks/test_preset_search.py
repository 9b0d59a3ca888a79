"""The search for presets: what it combines, what it expects of a step, and its table."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.full_size import full_size
from benchmarks.observed_run import ObservedRun
from benchmarks.preset_search.__main__ import HEADINGS, Measurements, Row, chosen, main, preset_for
from benchmarks.preset_search.combinations import EQUAL, Combination, Search
from benchmarks.preset_search.step_time import step_seconds
from benchmarks.presets import GB, Observed, presets_of
from benchmarks.steps import COMMON
from sd_scripts.families.cards.registry import card_of
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.tools.timed_run import WARM_UP

pytestmark = pytest.mark.run

STEPS: tuple[tuple[str, str, str, Mapping[str, Any], float], ...] = (
    ("flux", "", "lora", {"blocks_to_swap": 18, "gradient_checkpointing": True, "compile": True}, 0.5607),
    ("flux", "", "lora", {"blocks_to_swap": 34, "gradient_checkpointing": True, "compile": True}, 0.8318),
    (
        *("flux", "", "lora"),
        {"blocks_to_swap": 34, "gradient_checkpointing": True, "compile": True, "fp8_base": True},
        0.6206,
    ),
    ("flux", "", "lora", {"compile": True, "activation_memory_budget": 0.5}, 0.3909),
    ("flux", "", "lora", {"compile": True, "quantize_base": "int8"}, 0.3871),
    ("flux", "", "lora", {"compile": True, "quantize_base": "nf4"}, 0.3813),
    ("sdxl", "", "lora", {"compile": True, "activation_memory_budget": 0.5}, 0.072),
    ("sdxl", "", "lora", {"compile": True, "activation_memory_budget": 0.0}, 0.0807),
    ("sdxl", "", "lora", {"train_batch_size": 4}, 0.2058),
    ("sdxl", "", "full", {"full_bf16": True, "optimizer_type": "AdamW8bit"}, 0.0954),
    (
        *("flux2", "9b", "lora"),
        {"blocks_to_swap": 14, "gradient_checkpointing": True, "compile": True, "fp8_base": True},
        0.456,
    ),
)
"""(family, size, method, options, seconds of a step): rows of benchmarks/results."""


def search(family: str, folder: str, gb: int) -> Search:
    preset = preset_for(presets_of(family), folder, family, gb)
    assert preset
    return Search(preset=preset, measured=full_size(family).MEASURED_STEPS)


def test_expected_steps_are_near_measured_ones() -> None:
    wrong = {}
    for family, size, method, options, seconds in STEPS:
        settings = from_values(script_for(family, method), {**COMMON, "network_train_unet_only": True, **options})
        facts = card_of(family).plan.memory
        assert facts
        expected = step_seconds(settings, facts, full_size(family, size).MEASURED_STEPS)
        if abs(expected / seconds - 1) > 0.12:
            wrong[family, str(options)] = expected, seconds
    assert wrong == {}


def test_what_is_found_fits_is_valid_and_swaps_no_block_more_than_needed() -> None:
    found, swapped = search("flux", "lora", 12), 0
    problems = set(map(str, found.preset.settings().problems()))
    for each in found.ranked():
        assert each.plan.in_use <= 12 * GB
        assert set(map(str, each.preset.settings().problems())) == problems
        if count := each.chosen.get("blocks_to_swap", 0):
            swapped += 1
            fewer = replace(each.preset, values={**each.preset.values, "blocks_to_swap": count - 1})
            assert fewer.plan().in_use > 0.99 * 12 * GB  # type: ignore[union-attr]
    assert swapped


def test_the_fastest_comes_first_and_of_equal_ones_the_most_exact() -> None:
    ranked = search("sdxl", "lora", 24).ranked()
    assert ranked[0].seconds <= min(each.seconds for each in ranked) * EQUAL
    assert len({each.kind for each in ranked}) == len(ranked)
    plain = next(each for each in ranked if not each.compiled)
    assert plain.chosen == {"optimizer_type": "AdamW"}  # there is room for all
    small = next(each for each in search("sdxl", "finetune", 12).ranked() if not each.compiled)
    assert small.preset.values["optimizer_type"] == "Adafactor"  # other states do not fit


def test_a_gpu_without_a_preset_starts_from_the_next_smaller_ones() -> None:
    presets = presets_of("sdxl")
    assert preset_for(presets, "lora", "sdxl", 24) == replace(_named("lora/sdxl_low_memory_12gb"), cap=24 * GB)
    assert preset_for(presets, "finetune", "sdxl", 6) == replace(_named("finetune/sdxl_low_memory_8gb"), cap=6 * GB)
    assert preset_for(presets, "lora", "sdxx", 24) is None


def _named(name: str) -> Any:
    return next(each for each in presets_of("sdxl") if each.name == name)


def test_the_fastest_is_measured_before_the_preset_and_one_that_compiles_last() -> None:
    own = search("sdxl", "lora", 8).own()
    assert own
    rows = [Row(folder="lora", combination=own, is_preset=True)]
    rows += [Row(folder="lora", combination=each) for each in search("sdxl", "lora", 8).ranked()]
    order = chosen(rows, 2)
    assert [row.is_preset for row in order] == [False, True, False, False]
    assert [row.combination.compiled for row in order] == [False, False, False, True]


def run(*seconds: float) -> ObservedRun:
    events: list[dict[str, Any]] = [
        {"kind": "started", "time": 1.0},
        {"kind": "phase", "name": "training", "time": 2.0, "vram": 5 * 2**30, "reserved": 6 * 2**30},
        *({"kind": "step", "seconds": each, "loss": 1.0} for each in (*[1.0] * WARM_UP, *seconds)),
    ]
    return ObservedRun(began=0.0, events=events)


def test_the_table_is_sorted_and_written_after_each_row(tmp_path: Path) -> None:
    found = Measurements("An H200.", tmp_path / "table.md")
    first, second = search("sdxl", "lora", 8).ranked()[:2]
    failed = Observed(run=ObservedRun(began=0.0), failure="out of memory")
    found.add(Row(folder="lora", combination=first, observed=failed))
    assert "failed: out of memory |" in (tmp_path / "table.md").read_text()
    found.add(Row(folder="lora", combination=second, observed=Observed(run=run(0.2, 0.1, 0.3))))
    lines = (tmp_path / "table.md").read_text().splitlines()[4:]
    cells = dict(zip(HEADINGS, (cell.strip() for cell in lines[0].strip("|").split("|")), strict=True))
    assert (cells["ms"], cells["ms an image"], cells["min to max"]) == ("200.0", "100.0", "100.0 to 300.0")
    assert (cells["training GiB"], cells["result"]) == ("5.00", "trains")
    assert lines[1].endswith("out of memory |")


def test_a_run_within_a_smaller_limit_counts_for_a_larger_one_unless_it_failed() -> None:
    found = Measurements("", None)
    small, large = (_first(gb) for gb in (16, 24))
    assert small.run == large.run
    known = Observed(run=run(0.2))
    found.add(Row(folder="lora", combination=small, observed=known))
    assert found.known(Row(folder="lora", combination=large)) is known
    found.rows[0] = replace(found.rows[0], observed=replace(known, failure="out of memory"))
    assert found.known(Row(folder="lora", combination=large)) is None


def _first(gb: int) -> Combination:
    return next(each for each in search("sdxl", "lora", gb).ranked() if not each.compiled)


@pytest.mark.usefixtures("warm_python")
def test_the_best_run_within_the_limit_and_the_rest_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    began, clock = time.monotonic(), iter([0.0, 0.0, 100.0, 100.0])
    monkeypatch.setattr("benchmarks.preset_search.__main__.monotonic", lambda: began + next(clock, 100.0))
    small = ["--miniature", "--folder", str(tmp_path), "--steps", "1", "--warm_up", "1", "--minutes", "1"]
    assert main(["--family", "flux", "--gb", "24", "--best", "1", *small]) == 1
    printed = capsys.readouterr().out
    assert printed.count("| trains |") == 2  # as it comes, and in the table
    assert "(the preset)" in printed.partition("Left for another call:")[2]


def test_a_family_without_measured_steps_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--family", "wan", "--plan-only"]) == 2
    assert "no measured steps" in capsys.readouterr().err
