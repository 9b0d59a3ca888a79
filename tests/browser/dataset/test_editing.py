"""Captions are edited next to the grid of images: with the keyboard alone, without losing a text, and with undo."""

from pathlib import Path
from typing import Any

import pytest

from tests.browser.page_help import expect
from tests.browser.test_page import begin_anew
from tests.browser.test_page_width import too_wide
from tests.support.data import make_image

playwright = pytest.importorskip("playwright.sync_api")

CAPTIONS = {"a": "cat, sofa, red", "b": "cat, garden", "c": "cat " + "very, " * 60}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "2_cat"
    folder.mkdir()
    for seed, (name, caption) in enumerate(CAPTIONS.items()):
        make_image(folder / f"{name}.png", (96, 64), seed)
        (folder / f"{name}.txt").write_text(caption)
    return folder


@pytest.fixture
def side(page: Any, photos: Path) -> Any:
    """The editor next to the images of a form's field, with the first one chosen."""
    begin_anew(page, photos.parent, train_data_dir=str(photos.parent), caption_extension=".txt")
    page.locator("#lora-train_data_dir a[href$='#see-images']").click()
    expect(page.locator(".dataset-status")).to_have_text("3 images")
    page.evaluate("localStorage.removeItem('dataset-caption-mode')")
    page.locator(".image-grid").focus()
    page.keyboard.press("Home")
    expect(page.locator(".caption-box textarea")).to_have_value(CAPTIONS["a"])
    return page.locator("#dataset-side")


def saved(side: Any, file: Path, text: str) -> None:
    expect(side.locator(".undo-row [role=status]")).to_have_text("Saved")
    assert file.read_text() == text


def test_a_caption_is_edited_and_undone_with_the_keyboard_alone(side: Any, page: Any, photos: Path) -> None:
    page.keyboard.press("e")
    page.keyboard.press("End")
    page.keyboard.type(", new")
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowRight")  # the first caption is saved while the second is shown
    expect(side.locator("textarea")).to_have_value(CAPTIONS["b"])
    expect(page.locator(".image-cell").first).to_contain_text("cat, sofa, red, new")
    assert (photos / "a.txt").read_text() == "cat, sofa, red, new"
    page.keyboard.press("Control+z")
    expect(side.locator(".undo-row [role=status]")).to_have_text("Undone: Edit a.png")
    assert (photos / "a.txt").read_text() == CAPTIONS["a"]
    page.keyboard.press("End")
    expect(side.locator(".tokens")).to_contain_text("/ 75 tokens")
    expect(side.locator(".cut")).to_contain_text("Not read by the text encoder: very")


def test_letters_that_are_typed_while_the_dataset_is_read_again_are_saved(side: Any, page: Any, photos: Path) -> None:
    page.keyboard.press("e")
    page.keyboard.press("End")
    for letter in ", kitten":
        page.evaluate("document.dispatchEvent(new CustomEvent('dataset-opened'))")
        page.keyboard.type(letter)
    saved(side, photos / "a.txt", f"{CAPTIONS['a']}, kitten")


def test_tags_are_moved_edited_and_added_with_keys_and_by_dragging(side: Any, page: Any, photos: Path) -> None:
    side.get_by_role("button", name="Tags", exact=True).click()
    chips = side.locator(".tag-chip")
    chips.first.focus()
    for key in ("Alt+ArrowRight", "ArrowRight", "Delete"):
        page.keyboard.press(key)
    expect(chips).to_have_text(["sofa", "cat"])
    saved(side, photos / "a.txt", "sofa, cat")
    page.keyboard.press("Enter")
    field = side.get_by_label("Edit the tag cat")
    expect(field).to_be_focused()
    for letter in "kitten":  # which replace what is selected, while the dataset is read again
        page.evaluate("document.dispatchEvent(new CustomEvent('dataset-opened'))")
        page.keyboard.type(letter)
    page.keyboard.press("Enter")
    expect(chips).to_have_text(["sofa", "kitten"])
    page.keyboard.press("ArrowRight")
    page.keyboard.type("grass,")
    chips.nth(2).drag_to(chips.nth(0))
    expect(chips).to_have_text(["grass", "sofa", "kitten"])
    saved(side, photos / "a.txt", "grass, sofa, kitten")


def test_a_caption_that_somebody_else_changes_is_not_written_over(side: Any, page: Any, photos: Path) -> None:
    side.locator("textarea").fill("mine")
    (photos / "a.txt").write_text("theirs")
    expect(side.locator(".message-warning")).to_contain_text("There now: theirs")
    page.locator(".image-cell").nth(1).click()
    expect(side.locator("textarea")).to_have_value(CAPTIONS["b"])
    page.locator(".image-cell").nth(0).click()  # the text that could not be saved is still there
    expect(side.locator("textarea")).to_have_value("mine")
    expect(side.locator(".message-warning")).to_contain_text("Yours: mine")
    assert (photos / "a.txt").read_text() == "theirs"
    side.get_by_role("button", name="Write mine").click()
    expect(side.locator(".undo-row [role=status]")).to_have_text("Edit a.png")
    assert (photos / "a.txt").read_text() == "mine"
    expect(side.locator(".message-warning")).to_be_hidden()


def test_a_bulk_edit_shows_its_changes_first_and_removed_images_come_back(side: Any, page: Any, photos: Path) -> None:
    page.keyboard.press("Control+a")
    side.get_by_label("Find", exact=True).fill("cat")
    side.get_by_label("Replace with").fill("lion")
    page.keyboard.press("Enter")
    expect(side.locator(".bulk-preview ins")).to_have_text(["lion"] * 3)
    assert (photos / "b.txt").read_text() == CAPTIONS["b"]
    side.get_by_role("button", name="Change 3 captions").click()
    expect(page.locator(".image-cell").nth(1)).to_contain_text("lion, garden")
    side.get_by_role("button", name="Remove selected").click()
    expect(page.locator(".dataset-status")).to_contain_text("0 images")
    side.get_by_role("button", name="Undo").click()
    expect(page.locator(".dataset-status")).to_contain_text("3 images")
    assert (photos / "b.txt").read_text() == "lion, garden"
    page.locator(".image-grid").focus()
    for key, left in (("Delete", 0), ("Control+z", 3)):
        page.keyboard.press("Control+a")
        page.keyboard.press(key)
        expect(page.locator(".dataset-status")).to_contain_text(f"{left} images")
    assert too_wide(page) == set()
