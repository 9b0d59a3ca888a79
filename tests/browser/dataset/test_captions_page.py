"""The tab Captions in real Chromium: five images tried, then tagged, at all widths."""

from pathlib import Path
from typing import Any

import pytest

from tests.browser.page_help import expect
from tests.browser.test_page_width import too_wide
from tests.support.captioning_models.tagging import captions, write_colours, write_tagger

pytest.importorskip("playwright.sync_api")


def test_a_folder_is_tried_and_tagged(page: Any, tmp_path: Path) -> None:
    images = write_colours(tmp_path / "10_cat", "red", "blue")
    (images / "red.txt").write_text("mine\n")
    page.locator("#captions-button").click()
    tab = page.locator(".captions")
    expect(tab.locator("[data-method=tagger]")).to_have_attribute("aria-pressed", "true")
    page.evaluate("(folder) => Studio.caption(folder)", str(images))  # as the tab Dataset does
    tab.locator("#caption-model").fill(str(write_tagger(tmp_path / "tagger")))
    expect(tab.locator("[data-hint=train_data_dir]")).to_have_text("2 images, 1 with a .txt file")
    tab.locator("[data-action=try-captions]").click()
    rows = tab.locator(".job-changes tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("mine")
    expect(rows.nth(1)).to_contain_text("red fox (forest)")
    expect(rows.nth(1)).to_contain_text("The job skips this image")
    assert rows.locator("img").evaluate_all("(all) => all.every((each) => each.complete || !each.hidden)")
    assert captions(images) == {"red": "mine"}
    assert too_wide(page) == set()
    tab.locator("[data-action=start-captions]").click()
    expect(tab.locator(".result-panel")).to_contain_text("1 caption written; 1 skipped, which have a caption")
    assert captions(images) == {"blue": "blue sky", "red": "mine"}
    tab.locator("[data-method=endpoint]").click()
    tab.locator("[data-action=start-captions]").click()
    tab.locator(".message a, .message button", has_text="Address").first.click()
    expect(tab.locator("#caption-endpoint")).to_be_focused()
