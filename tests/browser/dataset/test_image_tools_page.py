"""The tab Image tools in real Chromium: images of the tab Dataset tried, cropped and seen, at all widths."""

from pathlib import Path
from typing import Any

import pytest

from tests.browser.page_help import expect
from tests.browser.test_page_width import WIDTHS, too_wide
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
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 1000})
        assert too_wide(page) == set()
    page.set_viewport_size({"width": 1400, "height": 1000})
    tab.locator("[data-action=start-images]").click()
    expect(tab.locator(".result-panel")).to_contain_text("1 image changed, 1 left out")
    assert (tmp_path / "photos-cropped" / "10_cat" / "a.txt").read_text() == "a cat"
    tab.locator("[data-action=see-copies]").click()
    expect(page.locator("[data-dataset] .image-cell")).to_have_count(1)
    expect(page.locator("[data-dataset] .cell-caption")).to_contain_text("a cat")
