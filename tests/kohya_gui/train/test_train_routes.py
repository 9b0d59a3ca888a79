"""What the cards of the Simple view show of a form's settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.runs.plan_process import PlanProcess
from kohya_gui.train.fits import Fits
from kohya_gui.train.length import LENGTHS, images_in, settings_for
from kohya_gui.train.train_routes import described
from tests.support.data import make_folder


def look(tab: str = "lora", family: str = "sdxl", allowed: AllowedPaths = EVERYWHERE, **values: Any) -> Any:
    return described({"tab": tab, "family": family, "values": values}, allowed)


def seen(images: int, repeats: int, chosen: Mapping[str, str]) -> int:
    return images * int(chosen.get("num_repeats", repeats)) * int(chosen["max_train_epochs"])


@pytest.mark.parametrize("images", [1, 5, 15, 40, 200, 2000])
def test_a_length_makes_a_run_see_about_its_number_of_images(images: int, tmp_path: Path) -> None:
    make_folder(tmp_path, [(32, 32)])
    one = images_in(tmp_path, clips=False)
    assert one
    assert one.flat
    assert one.count == 1
    many = type(one)(count=images, repeated=images, flat=True)
    for target in LENGTHS.values():
        chosen = settings_for(many, target)
        assert seen(images, 1, chosen) == pytest.approx(target, rel=0.35) or chosen["max_train_epochs"] == "1"


def test_repeats_in_the_names_of_folders_are_left_alone(tmp_path: Path) -> None:
    make_folder(tmp_path / "10_cat", [(32, 32)] * 3)
    make_folder(tmp_path / "2_dog", [(32, 32)] * 5)
    images = images_in(tmp_path, clips=False)
    assert images
    assert (images.count, images.repeated, images.flat) == (8, 40, False)
    assert settings_for(images, LENGTHS["normal"]) == {"max_train_epochs": "38"}


def test_each_card_names_what_it_lacks() -> None:
    problems = look()["problems"]
    assert [each["name"] for each in problems["images"]] == ["train_data_dir"]
    assert [each["name"] for each in problems["model"]] == ["pretrained_model_name_or_path"]
    assert problems["images"][0]["unset"]
    wrong = look(learning_rate="-1", train_data_dir="/nowhere")["problems"]
    assert "learning_rate" in [each["name"] for each in wrong["how"]]
    assert not wrong["images"][0]["unset"]


def test_a_family_lists_the_files_that_it_needs_and_the_methods_that_train_it() -> None:
    flux = look(family="flux")
    assert [each["name"] for each in flux["files"]] == ["clip_l", "t5xxl", "ae"]
    assert flux["methods"] == ["lora", "dreambooth", "finetune"]
    assert look()["methods"] == ["lora", "dreambooth", "finetune", "textual_inversion"]
    assert look(family="flux_kontext")["controls"]
    assert not flux["controls"]


def test_files_next_to_the_base_model_are_named_unless_they_lie_outside(flux_miniature: Any) -> None:
    files = {name: str(path) for name, path in flux_miniature.files.items()}
    model = files["pretrained_model_name_or_path"]
    beside = {
        each["name"]: each["beside"] for each in look(family="flux", pretrained_model_name_or_path=model)["files"]
    }
    assert beside == {name: files[name] for name in beside}
    elsewhere = look(
        family="flux", allowed=AllowedPaths.within([Path("/elsewhere")]), pretrained_model_name_or_path=model
    )
    assert not any(each["beside"] for each in elsewhere["files"])


def test_the_contents_of_a_folder_outside_the_allowed_ones_are_not_shown(tmp_path: Path) -> None:
    make_folder(tmp_path / "secret" / "10_cat", [(32, 32)])
    allowed = AllowedPaths.within([tmp_path / "mine"])
    answer = look(allowed=allowed, train_data_dir=str(tmp_path / "secret"))
    assert answer["images"] is None
    assert answer["lengths"] == {}
    (problem,) = answer["problems"]["images"]
    assert "1 image" not in problem["text"]


@pytest.mark.parametrize("values", [None, [], {"train_data_dir": ["a"]}, {"train_data_dir": "\0"}, {"num_repeats": {}}])
def test_an_odd_request_is_refused_or_answered_but_never_fails(values: Any) -> None:
    body = {"tab": "lora", "family": "sdxl", "values": values, "preset": 7}
    try:
        answer = described(body, EVERYWHERE)
    except ValueError:
        return
    assert answer["problems"]["images"]


@pytest.mark.parametrize("body", [{}, {"tab": "lora"}, {"tab": "lora", "family": "nobody"}, {"tab": [], "family": {}}])
def test_fits_of_no_family_are_refused(body: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match="tab and a model family"):
        Fits(PlanProcess()).of(body)
