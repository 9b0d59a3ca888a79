"""Runs in the page, in real Chromium against the real GUI: queue, reload, restart, a training that is continued."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.store import RunStore
from tests.browser.page_help import FAILS, TELLS, TRAINING, Gui, ask_for, expect, variant
from tests.support.runs import wait_for

playwright = pytest.importorskip("playwright.sync_api")
Page = playwright.Page

LONG = 100_000
"""Steps of a run that ends only when somebody ends it."""
PROMPT = "a drawn cat --w 64 --h 64 --s 2 --d 7"


def board(page: Page) -> list[dict[str, Any]]:
    """The runs as the page gets them, newest first."""
    return page.request.get("/studio/board").json()["runs"]


def brief(page: Page, name: str) -> dict[str, Any]:
    """The newest run of this name."""
    return next(run for run in board(page) if run["name"] == name)


def start(page: Page, settings: Path) -> int:
    """Open a file in the tab LoRA and press Start; returns the number of the run when the queue has it."""
    before = {run["id"] for run in board(page)}
    ask_for(page, settings)
    expect(page.locator("#lora-message")).to_contain_text(f"Opened {settings.name}")
    page.locator("#lora-start").click()
    wait_for(lambda: board(page)[:1] != [] and board(page)[0]["id"] not in before)
    run = board(page)[0]["id"]
    expect(page.locator("#lora-message")).not_to_contain_text("Opened")  # until Start has its answer, it takes no click
    return run


def go_to_runs(page: Page) -> None:
    page.locator("#runs-button").click()
    expect(page.locator("[data-board]")).to_be_visible()


def look_at(page: Page, run: int) -> None:
    """Choose a run in the tab Runs."""
    go_to_runs(page)
    page.locator(f".history [data-run='{run}'] .run-link, .queue [data-run='{run}'] .run-link").first.click()
    expect(live(page)).to_have_attribute("data-run", str(run))


def live(page: Page) -> Any:
    return page.locator(".live .run")


def press(page: Page, action: str) -> None:
    live(page).locator(f"[data-action={action}]").click()


def expect_step(page: Page, least: int = 1) -> None:
    """Until the live view shows at least this step."""
    page.wait_for_function(
        "(least) => Number(document.querySelector('.live .run-where')?.textContent.match(/step (\\d+)/)?.[1]) >= least",
        arg=least,
        timeout=TRAINING,
    )


def expect_badge(page: Page, words: str) -> None:
    expect(live(page).locator(".badge")).to_have_text(words, timeout=TRAINING)


def states_of(page: Page, *names: str) -> list[str]:
    return [brief(page, name)["state"] for name in names]


HIDES_GRADIOS_MESSAGES = """() => {
  const messages = document.createElement("div");
  messages.className = "toast-wrap";
  document.body.append(messages);
  const { display } = getComputedStyle(messages);
  messages.remove();
  return display === "none";
}"""


def test_a_queue_and_its_run_outlive_a_killed_gui_and_a_reload_and_the_run_is_continued(page, gui: Gui, flux_demo):
    prompts = flux_demo.with_name("prompts.txt")
    prompts.write_text(f"{PROMPT}\n")
    changes = {"sample_prompts": str(prompts), "ema_decay": 0.9, **TELLS}
    first = start(page, variant(flux_demo, "first", max_train_steps=LONG, **changes))
    expect_a_note_until_the_run_reports_it(page)
    second, third = (start(page, variant(flux_demo, name, max_train_steps=6, **TELLS)) for name in ("second", "third"))
    expect(live(page)).to_have_attribute("data-run", str(first))
    expect(page.locator("#lora-start")).to_have_text("Add to queue")
    expect(page.locator(".live .waiting")).to_contain_text("2 queued")
    expect_step(page)
    expect_sample_and_model_on_request(page)
    expect(page.locator(".live-title")).to_have_text("Current run")
    go_to_runs(page)
    expect(page.locator(".live-title")).to_be_hidden()
    queue = page.locator(".queue li")
    expect(queue).to_have_count(3)
    page.locator(f".queue [data-run='{third}'] [data-action=up]").click()
    expect(queue.nth(1)).to_contain_text("third")
    page.locator("#lora-button").click()

    gui.kill()
    expect(page.locator("#studio-banner")).to_contain_text("The GUI is not responding. Training continues")
    assert page.evaluate(HIDES_GRADIOS_MESSAGES)
    gui.start()
    expect(page.locator("#studio-banner")).not_to_contain_text("not responding")
    assert states_of(page, "first", "third", "second") == ["running", "queued", "queued"]
    page.evaluate("scrollTo(0, 300)")
    page.reload()
    expect(live(page)).to_have_attribute("data-run", str(first))
    wait_for(lambda: page.evaluate("scrollY") == 300)  # as the browser itself cannot: the page grows later
    expect_step(page, brief(page, "first")["step"] + 1)
    go_to_runs(page)
    expect(queue.nth(1)).to_contain_text("third")

    gui.ask(f"run/{first}/stop", {})  # as another browser does
    wait_for(lambda: brief(page, "second")["state"] == "finished", TRAINING / 1000)
    assert states_of(page, "first", "third", "second") == ["stopped", "finished", "finished"]
    for one, following in pairwise(brief(page, name) for name in ("first", "third", "second")):
        assert one["ended"] <= following["started"]  # never two at the same time
    look_at(page, second)
    expect_badge(page, "Finished")
    expect(live(page).locator(".result code")).to_contain_text("second.safetensors")
    expect_to_be_continued(page, first)


def unfold_plan(page: Page, unfolded: bool) -> None:
    """Find and change the element in one step, since a new plan may replace it at any moment."""
    expect(page.locator("#lora-plan details.plan")).to_be_visible()
    page.evaluate("unfolded => { document.querySelector('#lora-plan .plan').open = unfolded }", unfolded)


def expect_a_note_until_the_run_reports_it(page: Page) -> None:
    said, other = "has no effect while use_ema is off", "generates no samples on its own"
    unfold_plan(page, False)  # it would show both
    notes = page.locator("#lora-message [data-started] li")
    expect(notes.filter(has_text=said)).to_be_visible()
    log = RunFolder(Path(brief(page, "first")["folder"])).log()
    log("warning", text=f"ema_decay: {said}")
    log.close()
    expect(live(page).locator(".section-warning")).to_contain_text(said)
    expect(notes.filter(has_text=said)).to_be_hidden()
    expect(notes.filter(has_text=other)).to_be_visible()
    warning, plan = live(page).locator(".section-warning").filter(has_text=said), page.locator("#lora-plan .plan")
    expect(warning).to_be_visible()
    unfold_plan(page, True)
    expect(plan.locator("li", has_text=said)).to_be_visible()
    expect(warning.locator("li", has_text=said)).to_be_hidden()
    unfold_plan(page, False)
    expect(warning.locator("li", has_text=said)).to_be_visible()


def expect_sample_and_model_on_request(page: Page) -> None:
    press(page, "sample")
    expect(live(page).locator(".run-actions .done")).to_contain_text("Sampled at step", timeout=TRAINING)
    expect(live(page).locator(".sample img")).to_have_count(1)
    live(page).locator(".sample").click()
    expect(page.locator(".sample-large[open]")).to_contain_text("a drawn cat")
    expect(page.locator(".sample-large[open]")).to_contain_text("seed 7")
    assert page.evaluate("document.querySelector('.sample-large[open] img').naturalWidth") == 64
    page.keyboard.press("Escape")
    press(page, "save")
    expect(live(page).locator(".run-actions .done")).to_contain_text("Saved at step", timeout=TRAINING)
    buttons = live(page).locator("[data-section=controls] .run-actions")
    expect(buttons).to_have_count(2)
    upper, lower = (buttons.nth(row).bounding_box() for row in (0, 1))
    assert upper
    assert lower
    assert lower["y"] - (upper["y"] + upper["height"]) >= 7, "Compare checkpoints touches the buttons above it"
    with page.expect_download() as download:
        live(page).locator(".files a").first.click()
    assert download.value.path().stat().st_size > 1000


def expect_to_be_continued(page: Page, run: int) -> None:
    """The stopped run is resumed from its state as a new run."""
    before = brief(page, "first")
    heard = [event for event in RunFolder(Path(before["folder"])).events() if event["kind"] == "heard"]
    assert [event["command"] for event in heard] == ["sample", "save", "stop"]
    look_at(page, run)
    press(page, "continue")
    wait_for(lambda: brief(page, "first")["id"] != run)
    look_at(page, brief(page, "first")["id"])
    expect_step(page, before["step"] + 1)
    press(page, "stop")
    expect_badge(page, "Stopped")
    steps = [
        [event["step"] for event in RunFolder(Path(run["folder"])).events() if event["kind"] == "step"]
        for run in (before, brief(page, "first"))
    ]
    assert steps[0] == list(range(1, before["step"] + 1))
    assert steps[1] == list(range(before["step"] + 1, steps[1][-1] + 1))  # no step is lost and none is done twice


def test_a_failed_run_shows_the_problem_and_where_to_look_and_the_queue_continues(page, flux_demo):
    failed = start(page, variant(flux_demo, "broken", **FAILS))
    start(page, variant(flux_demo, "after", max_train_steps=3, **TELLS))
    wait_for(lambda: brief(page, "after")["state"] == "finished", TRAINING / 1000)
    look_at(page, failed)
    expect_badge(page, "Failed")
    told = "Optimizer (optimizer_type): cannot find 'nowhere.Optimizer'"
    expect(live(page).locator(".message-error")).to_contain_text(told)
    expect(page.locator(f".history [data-run='{failed}'] .badge")).to_have_attribute("title", re.compile("nowhere"))


def test_a_button_shows_older_runs(page: Page, gui: Gui, tmp_path: Path) -> None:
    store = RunStore(gui.runs)
    for number in range(30):
        store.add(tmp_path / f"{number}", name=f"older{number}", tab="lora", family="sdxl", state="finished")
    store.close()
    go_to_runs(page)
    page.get_by_label("Search runs").fill("older")
    rows, more = page.locator(".history tbody tr"), page.get_by_role("button", name="Show older runs")
    expect(rows).to_have_count(25)
    more.click()
    expect(rows).to_have_count(30)
    expect(more).to_be_hidden()
    page.get_by_label("Search runs").fill("")
