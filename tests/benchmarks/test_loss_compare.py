"""Losses and saved files of two commits are compared step by step and bit by bit."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.loss_compare import Comparison, Trained, main, report

NAMES = ("main", "HEAD")


def comparison(folder: Path, before: list[float], after: list[float], weight: float = 1.0) -> Comparison:
    for name, value in zip(NAMES, (1.0, weight), strict=True):
        save_file({"a": torch.ones(2), "b": torch.tensor([value])}, folder / f"{name}.safetensors")
    before_run, after_run = (
        Trained(losses=losses, saved=folder / f"{name}.safetensors")
        for name, losses in zip(NAMES, (before, after), strict=True)
    )
    return Comparison(before=before_run, after=after_run)


def test_equal_runs_end_with_exit_code_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(comparison(tmp_path, [0.5, math.nan], [0.5, math.nan]), NAMES) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "Largest difference of the losses: 0",
        "Saved tensors that differ: 0",
    ]


def test_the_largest_difference_is_shown_next_to_the_losses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(comparison(tmp_path, [0.5, 0.25, 0.5], [0.5, 0.375, 0.5]), NAMES) == 1
    heading, _, second, _, largest, _ = capsys.readouterr().out.splitlines()
    assert heading.split() == ["step", *NAMES, "difference"]
    assert second.split() == ["2", "0.250000", "0.375000", "0.125"]
    assert largest == "Largest difference of the losses: 0.125"


@pytest.mark.parametrize("after", [[0.5], [0.5, math.nan]])
def test_a_missing_or_nan_loss_is_a_difference(tmp_path: Path, after: list[float]) -> None:
    assert comparison(tmp_path, [0.5, 0.25], after).differences == [0.0, math.inf]


def test_equal_losses_do_not_hide_a_different_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = comparison(tmp_path, [0.5], [0.5], weight=-1.0)
    assert changed.differing_tensors == ["b"]
    assert report(changed, NAMES) == 1


def test_an_unknown_commit_is_an_error_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-commit"]) == 2
    assert capsys.readouterr().err == "'no-such-commit' is not a commit of this repository\n"
