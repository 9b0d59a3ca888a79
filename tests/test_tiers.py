"""Every test is in one tier, and fast tests train nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiers
from tiers import DEEP, RUN, TIERS, tier_of
from training_help import train


def test_every_collected_test_has_one_tier(request: pytest.FixtureRequest) -> None:
    found = {
        item.nodeid: {mark.name for mark in item.iter_markers()}.intersection(TIERS) for item in request.session.items
    }
    assert [name for name, own in found.items() if len(own) != 1] == []


def test_every_name_in_the_table_is_a_module_or_folder_and_in_one_tier() -> None:
    there = {path.stem for path in Path(__file__).parent.iterdir()}
    assert there >= RUN | DEEP
    assert not RUN & DEEP


def test_a_marker_of_the_test_comes_before_its_module() -> None:
    assert [tier_of("test_kill", set()), tier_of("test_resume", set()), tier_of("test_noise", set())] == [
        "deep", "run", "fast",
    ]  # fmt: skip
    assert tier_of("test_noise", {"run", "skipif"}) == "run"
    assert tier_of("test_compile", {"inductor"}) == "deep"
    assert tier_of("test_kill", {"fast"}) == "fast"


def test_a_fast_test_cannot_train(tmp_path: Path) -> None:
    model: Any = SimpleNamespace(family="sdxl", files={}, data_dir=tmp_path / "images")
    assert tiers.current == "fast"
    with pytest.raises(AssertionError, match="a fast test does not train"):
        train(model, tmp_path / "out")
