"""The route of the plan beside Start; plan_card.py runs the real script."""

from pathlib import Path
from typing import Any

import pytest
from data_help import make_folder

from kohya_gui import plan_card
from kohya_gui.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.plan_card import PlanCards
from sd_scripts.runs.store import state_folder


@pytest.fixture(autouse=True)
def _state() -> None:
    state_folder().mkdir(parents=True, exist_ok=True)


def body(folder: Path | str, **values: str) -> dict[str, Any]:
    return {
        "page": "1",
        "tab": "lora",
        "family": "sdxl",
        "values": {"train_data_dir": str(folder), "resolution": "64,64", "caption_extension": ".txt", **values},
    }


def html(cards: PlanCards, wanted: dict[str, Any]) -> str:
    answer = cards.card(None, wanted)  # type: ignore[arg-type]
    assert answer is not None
    return answer["html"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_folder(tmp_path / "3_cat", [(64, 64)] * 2, "<b>, c")
    return tmp_path


def test_the_card_shows_the_plan_of_the_script(folder: Path) -> None:
    shown = html(PlanCards(EVERYWHERE), body(folder, max_train_steps="12", compile="true"))
    assert "<span>12 steps, 2 images, 1 bucket, 14 graphs, 14.6 GiB</span>" in shown
    assert "<dt>Steps</dt><dd>12 (2 epochs of 6)</dd>" in shown


def test_images_that_lose_most_to_equal_tokens_are_listed(folder: Path) -> None:
    make_folder(folder / "1_dog", [(512, 481), (128, 64)])
    values = {"resolution": "512,512", "enable_bucket": "true"}
    shown = html(PlanCards(EVERYWHERE), body(folder, **values, equal_token_buckets="true"))
    assert "<dl><dt>01.png</dt><dd>128x64 in 640x384: 16.7 % cropped</dd><dt>00.png</dt>" in shown
    assert "512x481 in" not in shown
    assert " % cropped" not in html(PlanCards(EVERYWHERE), body(folder, **values))


def test_a_plan_is_made_once_until_the_images_change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards, made = PlanCards(EVERYWHERE), []
    real = plan_card.html_of
    monkeypatch.setattr(plan_card, "html_of", lambda settings: made.append(1) or real(settings))
    first = html(cards, body(folder))
    assert html(cards, body(folder)) == first
    assert len(made) == 1
    make_folder(folder / "1_dog", [(64, 64)])
    assert "3 images" in html(cards, body(folder))
    assert len(made) == 2


def test_what_is_missing_is_told_and_quoted_safely(folder: Path) -> None:
    cards = PlanCards(EVERYWHERE)
    assert plan_card.NO_DATA in html(cards, body(""))
    told = html(cards, body(folder / "<script>"))
    assert "No plan yet: train_data_dir: there is no folder" in told
    assert "<script>" not in told


def test_folders_outside_the_allowed_ones_are_not_looked_at(folder: Path, tmp_path_factory: Any) -> None:
    elsewhere = AllowedPaths.within([tmp_path_factory.mktemp("allowed")])
    assert "is outside the allowed folders" in html(PlanCards(elsewhere), body(folder))


@pytest.mark.parametrize(
    "wrong", [{"tab": "x"}, {"family": "x"}, {"values": None}, {"family": None}], ids=lambda each: next(iter(each))
)
def test_a_request_that_names_no_form_is_refused(wrong: dict[str, Any], folder: Path) -> None:
    with pytest.raises(ValueError, match="does not name a tab"):
        PlanCards(EVERYWHERE).card(None, {**body(folder), **wrong})  # type: ignore[arg-type]
