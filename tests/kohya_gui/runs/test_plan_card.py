"""The route of the plan next to Start, and the process that makes the plans."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.form.field_links import FieldLinks
from kohya_gui.runs import plan_card
from kohya_gui.runs.plan_card import PlanCards
from kohya_gui.runs.plan_process import PROGRAM, PlanProcess
from sd_scripts.machine import resident as resident_loop
from sd_scripts.planning import serve
from sd_scripts.runs.store import state_folder
from sd_scripts.settings.family_options import each_option
from tests.support.data import make_folder
from tests.support.gui import planners
from tests.support.scripts import SDXL_LORA

pytestmark = pytest.mark.run


@pytest.fixture(scope="module")
def process() -> Iterator[PlanProcess]:
    process = PlanProcess()
    yield process
    process.close()


@pytest.fixture
def cards(process: PlanProcess) -> PlanCards:
    return PlanCards(EVERYWHERE, process)


@pytest.fixture(autouse=True)
def _state() -> None:
    state_folder().mkdir(parents=True, exist_ok=True)


def body(folder: Path | str, **values: str) -> dict[str, Any]:
    return {
        "tab": "lora",
        "family": "sdxl",
        "values": {"train_data_dir": str(folder), "resolution": "64,64", "caption_extension": ".txt", **values},
    }


def html(cards: PlanCards, wanted: dict[str, Any]) -> str:
    return cards.card(None, wanted)["html"]  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_folder(tmp_path / "3_cat", [(64, 64)] * 2, "<b>, c")
    return tmp_path


def test_the_card_shows_the_plan_of_the_script(cards: PlanCards, folder: Path) -> None:
    shown = html(cards, body(folder, max_train_steps="12", compile="true"))
    assert "<span>12 steps, 2 images, 1 bucket, 14 graphs, 14.6 GiB</span>" in shown
    assert "<dt>Steps</dt><dd>12 (2 epochs of 6 steps)</dd>" in shown


def test_images_cropped_most_by_equal_tokens_are_listed(cards: PlanCards, folder: Path) -> None:
    make_folder(folder / "1_dog", [(512, 481), (128, 64)])
    values = {"resolution": "512,512", "enable_bucket": "true"}
    shown = html(cards, body(folder, **values, equal_token_buckets="true"))
    assert "<dl><dt>01.png</dt><dd>128x64 in 640x384: 16.7 % cropped</dd><dt>00.png</dt>" in shown
    assert "512x481 in" not in shown
    assert " % cropped" not in html(cards, body(folder, **values))


def test_a_plan_is_made_once_until_the_images_change(cards: PlanCards, folder: Path) -> None:
    first = html(cards, body(folder))
    (planner,) = planners()
    planner.suspend()  # who asked it now would wait
    assert html(cards, body(folder)) == first
    planner.resume()
    make_folder(folder / "1_dog", [(64, 64)])
    assert "3 images" in html(cards, body(folder))
    assert planners() == [planner]


def test_a_killed_planner_is_replaced(cards: PlanCards, folder: Path) -> None:
    html(cards, body(folder))
    (planner,) = planners()
    planner.kill()
    assert "2 images" in html(cards, body(folder, max_train_steps="7"))
    assert planners() != [planner]


def test_a_plan_that_takes_too_long_is_cut_off(folder: Path) -> None:
    before, hurried = planners(), PlanProcess(longest=0.05)  # less than Python takes to start
    assert plan_card.TOO_LONG in html(PlanCards(EVERYWHERE, hurried), body(folder))
    assert planners() == before


def test_a_planner_ends_with_the_gui() -> None:
    with subprocess.Popen([sys.executable, "-m", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as planner:
        assert planner.communicate(timeout=300) == (b"", None)


def test_a_planner_sees_that_its_code_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, other = (ModuleType(name) for name in ("sd_scripts.families.new.card", "another.package"))
    for each in (module, other):
        each.__file__ = str(tmp_path / f"{each.__name__}.py")
        Path(each.__file__).touch()
        monkeypatch.setitem(sys.modules, each.__name__, each)
    loaded = resident_loop.code_times()
    assert loaded[module.__file__] > 0
    assert other.__file__ not in loaded
    assert resident_loop.code_times() == loaded
    Path(module.__file__).unlink()
    assert resident_loop.code_times() != loaded


def test_an_error_in_a_plan_is_answered() -> None:
    assert "KeyError" in serve.answer({"method": "lora"})["fault"]


def test_missing_values_are_reported_and_quoted_safely(cards: PlanCards, folder: Path) -> None:
    assert plan_card.NO_DATA in html(cards, body(""))
    told = html(cards, body(folder / "<script>"))
    assert "No plan yet: train_data_dir: folder not found" in told
    assert "<script>" not in told


def test_a_plan_links_to_the_fields_that_it_names(process: PlanProcess, folder: Path) -> None:
    options = {o.name: o for group in SDXL_LORA.groups for o in each_option(group)}
    cards = PlanCards(EVERYWHERE, process, {"lora": FieldLinks("lora", options)})
    refused = html(cards, body(folder, resolution="8"))
    assert re.search(r'No plan yet: <button [^>]* data-field="lora-resolution" [^>]*>Resolution</button>', refused)
    assert 'data-field="lora-max_train_steps"' in html(cards, body(folder, max_train_steps="9"))


def test_prompts_that_make_no_samples_are_reported_before_the_start_with_a_remedy(
    process: PlanProcess, folder: Path
) -> None:
    options = {o.name: o for group in SDXL_LORA.groups for o in each_option(group)}
    cards = PlanCards(EVERYWHERE, process, {"lora": FieldLinks("lora", options)})
    (prompts := folder / "prompts.txt").write_text("a dog")
    told = html(cards, body(folder, sample_prompts=str(prompts)))
    assert "generates no samples on its own" in told
    assert 'data-set="lora-sample_every_n_epochs" data-value="1"' in told
    assert "generates no samples" not in html(
        cards, body(folder, sample_prompts=str(prompts), sample_every_n_steps="5")
    )


def test_folders_outside_the_allowed_ones_are_not_looked_at(
    process: PlanProcess, folder: Path, tmp_path_factory: Any
) -> None:
    elsewhere = AllowedPaths.within([tmp_path_factory.mktemp("allowed")])
    assert "is outside the allowed folders" in html(PlanCards(elsewhere, process), body(folder))


@pytest.mark.parametrize(
    "wrong", [{"tab": "x"}, {"family": "x"}, {"values": None}, {"family": None}], ids=lambda each: next(iter(each))
)
def test_a_request_that_names_no_form_is_refused(wrong: dict[str, Any], cards: PlanCards, folder: Path) -> None:
    with pytest.raises(ValueError, match="does not name a tab"):
        cards.card(None, {**body(folder), **wrong})  # type: ignore[arg-type]
