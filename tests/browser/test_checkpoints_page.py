"""The dialog that compares checkpoints, in real Chromium: a form becomes a job, and the job a grid of images."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sd_scripts.runs.store import RunStore
from tests.browser.page_help import TRAINING, expect
from tests.browser.test_page_width import too_wide
from tests.support.training import images, train

pytest.importorskip("playwright.sync_api")


def test_checkpoints_are_compared_from_the_form_to_the_grid(
    page: Any, gui: Any, any_miniature: Any, tmp_path: Path
) -> None:
    data = images(tmp_path / "images", count=5)
    held_out = {"validation_split": 0.4, "save_every_n_steps": 2, "max_train_steps": 4}
    run = train(any_miniature, tmp_path / "out", train_data_dir=data, **held_out)
    RunStore(gui.runs).add(run.folder, name="compared", tab="lora", family=any_miniature.family, state="finished")
    page.locator("#runs-button").click()
    page.locator(".history .run-link", has_text="compared").click()
    page.locator("#runs-run [data-action=checkpoints]").click()
    dialog = page.get_by_role("dialog", name="Compare checkpoints")
    boxes = dialog.locator("fieldset input[type=checkbox]")
    expect(boxes).to_have_count(2)
    heights = dialog.locator(".job-form label:not(.tick, [hidden]) > :is(input, select)")
    assert len(set(heights.evaluate_all("all => all.map((each) => each.offsetHeight)"))) == 1  # labels in a row align

    dialog.get_by_role("button", name="None").click()
    dialog.locator("[data-action=start-comparison]").click()
    expect(dialog.locator(".message-error").first).to_contain_text("(checkpoints): none is chosen")

    dialog.get_by_role("button", name="All").click()
    dialog.locator("[name=prompt]").fill("a red circle --w 64 --h 64 --s 1\na blue square --w 64 --h 64 --s 1")
    dialog.locator("[name=strengths]").fill("0.5, 1")
    dialog.locator("[name=seeds]").fill("7")
    dialog.locator("[data-action=start-comparison]").click()
    expect(dialog.locator(".checkpoints-job")).to_be_visible()
    expect(dialog.locator(".checkpoint-grid .sample")).to_have_count(8, timeout=TRAINING)
    expect(dialog.locator(".checkpoints-job")).to_be_hidden(timeout=TRAINING)
    expect(dialog.locator(".losses circle")).to_have_count(2)
    for width in (1400, 800):
        page.set_viewport_size({"width": width, "height": 1000})
        room = dialog.locator("section").evaluate("section => section.clientWidth")
        expect(dialog.locator("svg.losses")).to_have_attribute("viewBox", f"0 0 {room} 132")
        assert dialog.locator("svg.losses").evaluate("chart => chart.getBoundingClientRect().width") == room
    page.set_viewport_size({"width": 1400, "height": 1000})
    expect(dialog.locator(".message-error")).to_have_count(0)
    assert not [each for each in too_wide(page) if ".scroll:" not in each]  # the grid scrolls within the dialog

    dialog.locator("[data-rule]").select_option("last")
    expect(dialog.locator(".verdict")).to_contain_text("Best: step 4 (short)")
    expect(dialog.locator(".checkpoint-head.best")).to_have_count(2)  # at both strengths

    with page.expect_download() as download:
        dialog.get_by_text("Download as one image").click()
    with Image.open(download.value.path()) as grid:
        assert grid.width > 4 * 64

    rate_by_eye(page, dialog)

    dialog.locator(".checkpoint-grid .sample").first.click()
    large = page.get_by_role("dialog", name="Image", exact=True)
    caption = large.locator(".shown figcaption")
    expect(caption).to_contain_text("step 2 × 0.5")
    large.locator("[data-action=pin]").click()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect(caption).to_contain_text("step 4 × 0.5")
    expect(large.locator(".pinned figcaption")).to_contain_text("step 2 × 0.5")
    expect(large.locator(".sample-prompt")).to_have_text("a blue square")
    large.locator(".shown img").click()
    expect(large.locator(".zoomed")).to_have_count(2)

    large.locator("[data-action=use]").click()
    form = page.locator("#generate")
    expect(form.locator("#generate-prompt textarea")).to_have_value("a blue square")
    expect(form.locator("#generate-image_seed input")).to_have_value("7")


def rate_by_eye(page: Any, dialog: Any) -> None:
    """Prefer the left image of a pair, and call another pair equal; names are seen afterwards only."""
    dialog.get_by_role("button", name="Rate by eye").click()
    rating = page.get_by_role("dialog", name="Rate by eye")
    expect(rating.get_by_role("status")).to_have_text("Which is better? 1 of 12")  # two prompts, four sides
    expect(rating.get_by_role("img")).to_have_count(2)
    assert "step" not in rating.inner_text()
    for key in ("ArrowRight", "Backspace", "ArrowLeft", "ArrowDown"):
        page.keyboard.press(key)
    expect(rating.get_by_role("status")).to_have_text("Which is better? 3 of 12")
    rating.get_by_role("button", name="Show the result").click()
    page.keyboard.press("ArrowRight")  # about no pair that is seen
    expect(rating).to_contain_text("After 2 of 12 pairs")
    expect(rating.locator("tbody tr")).to_have_count(4)
    columns = [rating.locator(f"tbody td:nth-of-type({place})").all_inner_texts() for place in (1, 2, 3)]
    assert [sum(map(int, column)) for column in columns] == [1, 2, 1]
    assert set(rating.locator("tbody th").all_inner_texts()) == {
        f"step {step} × {strength}" for step in (2, 4) for strength in ("0.5", "1")
    }
    page.keyboard.press("Escape")
