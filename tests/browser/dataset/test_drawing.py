"""Masks are painted and images cut in real Chromium, with mouse and keys; what is drawn is what the file has."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sd_scripts.data.sources.images import read_image, read_mask
from tests.browser.page_help import expect
from tests.browser.test_page import begin_anew
from tests.browser.test_page_width import too_wide
from tests.support.data import make_folder

playwright = pytest.importorskip("playwright.sync_api")
SIZE = (96, 64)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    make_folder(tmp_path / "2_cat", [SIZE] * 3)
    return tmp_path / "2_cat"


@pytest.fixture
def dataset(page: Any, photos: Path) -> Any:
    """The page with three images of a form's field, the first one chosen."""
    sizes = {"resolution": "512,512", "enable_bucket": True, "bucket_no_upscale": True}
    begin_anew(page, photos.parent, train_data_dir=str(photos.parent), **sizes)
    page.locator("#lora-train_data_dir a[href$='#see-images']").click()
    expect(page.locator(".dataset-status")).to_have_text("3 images")
    page.evaluate("localStorage.removeItem('dataset-mask-brush')")
    page.locator(".image-grid").focus()
    page.keyboard.press("Home")
    return page


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def test_a_mask_is_painted_with_keys_and_mouse_saved_and_undone(dataset: Any, photos: Path) -> None:
    press(dataset, "m")
    dialog = dataset.locator("dialog[open]")
    expect(dialog).to_contain_text("00.png does not exist yet")
    press(dataset, "f", "x", *["["] * 13, "Enter")  # nothing is trained but a dab in the middle
    stage = dialog.locator(".stage").bounding_box()
    picture = dialog.locator(".stage-content").bounding_box()
    press(dataset, "e")
    dataset.mouse.move(picture["x"] + picture["width"] / 2, stage["y"] + 5)
    dataset.mouse.down()
    dataset.mouse.move(picture["x"] + picture["width"] / 2, stage["y"] + stage["height"] - 5)  # erased again
    dataset.mouse.up()
    press(dataset, "Control+z", "PageDown")
    expect(dialog).to_contain_text("2 of 3")
    masks = photos.parent / "masks" / "2_cat"
    painted = read_mask(masks / "00.png")
    assert painted.shape == (SIZE[1], SIZE[0])
    assert (painted[32, 48], painted[2, 2], painted[2, 48]) == (255, 0, 0)
    dialog.get_by_role("button", name="White masks for the other 2").click()
    expect(dialog).to_contain_text("3 of 3 images have a mask")
    assert read_mask(masks / "02.png").min() == 255
    assert too_wide(dataset) == set()
    press(dataset, "Escape")
    expect(dataset.locator(".chips [data-mark=masked]")).to_have_text("mask 3")
    expect(dataset.locator(".image-cell .mask-tint")).to_have_count(3)
    dataset.locator(".image-grid").focus()
    press(dataset, "Control+z")
    expect(dataset.locator(".undo-row [role=status]")).to_have_text("Undone: White masks for 2 images")
    assert [path.name for path in masks.iterdir()] == ["00.png"]


def test_an_image_is_cut_with_keys_to_a_frame_and_comes_back(dataset: Any, photos: Path) -> None:
    before = read_image(photos / "00.png")[0]
    press(dataset, "c")
    dialog = dataset.locator("dialog[open]")
    shape = dialog.get_by_label("Shape of the frame")
    square = "(list) => [...list.options].map(({ value }) => value).find((value) => /^(\\d+)x\\1$/.test(value))"
    expect(shape.locator("option").nth(1)).to_be_attached()
    shape.select_option(shape.evaluate(square))
    expect(dialog.locator(".cut-facts")).to_contain_text("64 × 64 pixels at 16, 0 · bucket")
    dialog.locator(".stage").focus()
    why = "not enlarged to 512 × 512, since bucket_no_upscale is on"
    expect(dialog.locator(".cut-facts")).to_contain_text(why)
    press(dataset, "ArrowLeft", "Shift+ArrowRight")
    expect(dialog.locator(".cut-facts")).to_contain_text("64 × 64 pixels at 25, 0")
    press(dataset, "Enter")
    expect(dialog).to_contain_text("00.png was cropped; the original is in the trash.")
    expect(dialog).to_contain_text("2 of 3")
    assert np.array_equal(read_image(photos / "00.png")[0], before[:, 25:89])
    assert too_wide(dataset) == set()
    press(dataset, "Control+z")
    expect(dialog).to_contain_text("Undone: Crop 00.png")
    assert np.array_equal(read_image(photos / "00.png")[0], before)
    press(dataset, "Escape")
