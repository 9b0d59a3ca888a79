"""The tab Image tools and the reports of the tab Dataset in real Chromium."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.browser.page_help import expect
from tests.browser.test_page_width import too_wide
from tests.support.image_models.tiny import draw, write_yunet

pytest.importorskip("playwright.sync_api")


def test_images_are_tried_cropped_and_seen(page: Any, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    face = [(84, 68, 115, 99)]
    draw(photos / "10_cat" / "a.png", red=face)
    draw(photos / "10_cat" / "b.bmp")
    (photos / "10_cat" / "a.txt").write_text("a cat")
    page.locator("#imagetools-button").click()
    page.evaluate("(folder) => Studio.editImages(folder)", str(photos))  # as the tab Dataset does
    tab = page.locator(".job-tab.images")
    expect(tab.locator("[data-hint=train_data_dir]")).to_have_text("2 images")
    tab.locator("[data-method=crop]").click()
    expect(tab.locator("[data-hint=model]")).to_contain_text("a download of 0.2 MB, licence MIT")
    tab.locator("#images-model").fill(str(write_yunet(tmp_path / "yunet.onnx")))
    expect(tab.locator("[data-hint=model]")).to_have_text("On this machine")
    expect(tab.locator("#images-min_kept")).to_be_hidden()
    tab.locator("[data-action=try-images]").click()
    rows = tab.locator(".job-changes tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0).locator("img")).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("no face was found")
    assert {path.name for path in tmp_path.iterdir()} == {"photos", "yunet.onnx"}
    assert too_wide(page) == set()
    tab.locator("[data-action=start-images]").click()
    expect(tab.locator(".result-panel")).to_contain_text("1 image changed; 1 left out")
    assert (tmp_path / "photos-cropped" / "10_cat" / "a.txt").read_text() == "a cat"
    tab.locator("[data-action=see-copies]").click()
    expect(page.locator("[data-dataset] .image-cell")).to_have_count(1)
    expect(page.locator("[data-dataset] .cell-caption")).to_contain_text("a cat")


def scene(seed: int) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(40, 255, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((320, 240), Image.Resampling.BICUBIC)


@pytest.fixture
def cats(page: Any, tmp_path: Path) -> Path:
    """A dataset with one image in three sizes, looked at in the tab Dataset."""
    folder = tmp_path / "3_cat"
    folder.mkdir()
    words = ["1girl, close-up, smile", "1girl, full body", "1girl, from_behind, smile", "1girl, full_body", "1girl"]
    for number, text in enumerate(words):
        scene(number).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(text)
    scene(0).resize((160, 120)).save(folder / "small.jpg", quality=90)
    (folder / "small.txt").write_text("1girl, a longer caption than the other")
    (folder / "copy.png").write_bytes((folder / "0.png").read_bytes())
    page.evaluate("(folder) => Studio.dataset.visit(folder)", str(tmp_path))
    expect(page.locator(".dataset-status")).to_have_text("7 images")
    page.wait_for_function("Studio.dataset.images().every(({ alike }) => alike !== null)")
    return folder


def test_the_best_of_similar_images_is_kept_and_the_others_go_into_the_trash(page: Any, cats: Path) -> None:
    page.locator("#dataset-duplicates").click()
    dialog = page.locator("dialog[aria-label=Duplicates]")
    names = dialog.locator(".duplicate-group figcaption > span:first-child")
    expect(names).to_have_text(["0.png", "copy.png", "small.jpg"])
    expect(dialog.locator("figcaption")).to_contain_text(["Best", "the same file", "fewer pixels"])
    dialog.get_by_label("Keep").nth(2).check()
    action = dialog.locator("[data-action=remove-duplicates]")
    expect(action).to_have_text("Move 1 image to the trash")
    assert too_wide(page) == set()
    action.click()
    expect(page.locator(".dataset-status")).to_have_text("6 images")
    assert [path.name for path in (cats / ".trash").rglob("copy.*")] == ["copy.png"]
    assert not (cats / "copy.png").exists()


def test_the_balance_counts_what_captions_say_and_names_what_none_says(page: Any, cats: Path) -> None:
    page.locator("#dataset-balance").click()
    dialog = page.locator("dialog[aria-label=Balance]")
    expect(dialog.locator("b").first).to_have_text("Balance of 7 images")
    rows = dialog.locator(".balance li").evaluate_all(
        "(all) => all.map((row) => row.innerText.split(/\\s*\\n\\s*/).join('|'))"
    )
    assert {"3_cat: 100 % of an epoch|7", "landscape|7", "close-up|1", "full body|2", "behind|1", "1girl|6"} <= {*rows}
    expect(dialog.locator(".never")).to_contain_text(
        "framing: portrait, upper body, to the knees, wide shot; seen from: the front"
    )
    expect(dialog.locator(".never")).not_to_contain_text("light")  # no caption mentions it at all
    assert too_wide(page) == set()
    dialog.get_by_role("button", name="full body").first.click()
    assert [Path(path).name for path in page.evaluate("Studio.dataset.selection()")] == ["1.png", "3.png"]
