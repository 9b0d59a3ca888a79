"""Every test is in one tier, and fast tests train nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.suite import tiers
from tests.support.suite.tiers import TIERS, tier_of, tier_of_file
from tests.support.training import train


def test_every_collected_test_has_one_tier(request: pytest.FixtureRequest) -> None:
    found = {
        item.nodeid: {mark.name for mark in item.iter_markers()}.intersection(TIERS) for item in request.session.items
    }
    assert [name for name, own in found.items() if len(own) != 1] == []


def test_the_first_mark_of_a_module_or_its_folder_is_its_tier(tmp_path: Path) -> None:
    marks = {
        "": "fast",
        "pytestmark = pytest.mark.run\n": "run",
        "pytestmark = [\n    pytest.mark.deep,\n    pytest.mark.skipif(True, reason='')\n]\n": "deep",
        "pytestmark = pytest.mark.usefixtures('no_graphs')\n": "fast",
        "@pytest.mark.run\ndef test(): ...\n": "fast",
    }
    for number, text in enumerate(marks):
        (tmp_path / f"test_{number}.py").write_text(text)
    assert [tier_of_file(tmp_path / f"test_{number}.py") for number in range(len(marks))] == [*marks.values()]
    assert tier_of_file(tmp_path / "browser" / "test_page.py") == tier_of_file(tmp_path / "browser") == "deep"


def test_a_marker_of_the_test_overrides_its_module(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text("pytestmark = pytest.mark.deep\n")
    assert tier_of(file, ["skipif"]) == "deep"
    assert tier_of(file, ["fast", "deep"]) == "fast"
    file.write_text("")
    assert tier_of(file, ["run", "skipif"]) == "run"
    assert tier_of(file, ["inductor"]) == "deep"


def test_a_fast_test_cannot_train(tmp_path: Path) -> None:
    model: Any = SimpleNamespace(family="sdxl", files={}, data_dir=tmp_path / "images")
    assert tiers.current == "fast"
    with pytest.raises(AssertionError, match="a fast test does not train"):
        train(model, tmp_path / "out")
