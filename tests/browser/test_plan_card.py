"""The plan next to Start follows the form, and measuring completes it, in real Chromium."""

from pathlib import Path
from typing import Any

import pytest

from tests.browser.page_help import SMALL, TELLS, TRAINING, choose, expect, field, unfold, variant
from tests.browser.test_page import begin_anew, open_file

playwright = pytest.importorskip("playwright.sync_api")


UNFOLD = """(plan) => {
  const details = plan.querySelector("details.plan");
  if (details && !details.open) details.querySelector("summary").click();
  return details?.open;
}"""


def unfold_plan(plan: Any) -> None:
    """Click immediately, and wait until it is open: a plan that arrives between pressing and releasing the button
    swallows the click."""
    plan.evaluate(UNFOLD)
    expect(plan.locator("details.plan")).to_have_attribute("open", "")


def test_the_plan_follows_the_form(page: Any, demo: Path, tmp_path: Path) -> None:
    plan = page.locator("#lora-plan")
    open_file(page, variant(demo, "planned", compile=False, max_train_steps=60))
    expect(plan.locator("summary")).to_have_text("Plan 60 steps, 12 images, 1 bucket")
    unfold_plan(plan)
    expect(plan).to_contain_text("1 epoch of 120 steps")
    expect(plan).not_to_contain_text("Graphs")
    field(page, "max_train_steps").fill("300")
    expect(plan.locator("summary")).to_contain_text("Plan 300 steps")
    expect(plan.locator("details.plan")).to_have_attribute("open", "")
    page.locator("#lora-compile-switch input").check()
    expect(plan.locator("summary")).to_contain_text("1 bucket, 14 graphs")
    expect(plan).to_contain_text("14 (estimated), 12 of them recompiles; graphs for each shape")
    field(page, "train_data_dir").fill(str(tmp_path / "gone"))
    expect(plan.locator(".plan")).to_have_text(  # an earlier test may have left a table of measurements below it
        f"No plan yet: Training images (train_data_dir): folder not found: '{tmp_path / 'gone'}'"
    )
    begin_anew(page, tmp_path)
    expect(plan).to_contain_text("Choose the training images")


def test_short_batches_are_advised_against(page: Any, demo: Path) -> None:
    plan = page.locator("#lora-plan")
    values = {"train_batch_size": 7, "compile_backend": SMALL["compile_backend"]}
    open_file(page, variant(demo, "short", compile=True, **values))
    expect(plan).to_contain_text("28 graphs")
    unfold_plan(plan)
    expect(plan).to_contain_text("fill or drop gives 14 graphs instead of 28")
    unfold(page, "advanced-training", "buckets-and-loading")
    choose(page, "short_batches", "fill")
    expect(plan).to_contain_text("14 graphs")
    expect(plan).not_to_contain_text("instead of")


def fits(page: Any, box: Any, width: int) -> bool:
    """Whether nothing in a box scrolls sideways in a window of this width."""
    size = page.viewport_size
    page.set_viewport_size({"width": width, "height": 900})
    fitting = box.evaluate("(box) => box.scrollWidth <= box.clientWidth")
    page.set_viewport_size(size)
    return fitting


def test_measured_variants_are_compared_used_and_remembered(page: Any, flux_demo: Path) -> None:
    plan, measured = page.locator("#lora-plan"), page.locator("#lora-plan [data-measured]")
    small = {"max_train_steps": 50_000, "network_dim": 3, "resolution": "64,64"}
    open_file(page, variant(flux_demo, "measured", compile=False, **small, **TELLS))
    expect(plan).to_contain_text("Plan 50,000 steps")
    unfold_plan(plan)
    expect(plan).to_contain_text("not known until a run here has trained with these settings")
    start = page.get_by_role("button", name="Measure on this machine")
    start.click()
    expect(measured.get_by_role("progressbar")).to_be_visible()
    page.get_by_role("button", name="Stop measuring").click()
    expect(measured).to_contain_text("Measuring was stopped", timeout=TRAINING)
    start.click()
    compiled = measured.locator("tr", has_text="default")
    expect(compiled).to_contain_text("with cache", timeout=TRAINING)
    assert measured.locator("tr.best").count() == 1
    assert fits(page, measured.locator(".measured"), 390)
    expect(plan).to_contain_text("remembered: the last such run on this machine")
    compiled.get_by_role("button", name="Use this").click()
    expect(page.locator("#lora-message")).to_contain_text("Set compile = true")
    expect(page.locator("#lora-compile-switch input")).to_be_checked()
    expect(plan).to_contain_text("Pays off")
    expect(plan).to_contain_text("50,000 steps, 12 images, 1 bucket, 2 graphs, about")
