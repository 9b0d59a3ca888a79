"""Runs in the page, in real Chromium against the real GUI: queue, reload, restart, a training that is continued."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from data_help import make_folder
from runs_help import wait_for

from browser.page_help import BREAKS, CHROMIUM, FAILS, SLOW, TELLS, TRAINING, Gui, ask_for, expect, variant
from sd_scripts.formats.toml_files import read_toml, write_toml
from sd_scripts.runs.folder import RunFolder

playwright = pytest.importorskip("playwright.sync_api")
Page = playwright.Page

LONG = 100_000
"""Steps of a run that ends only when somebody ends it."""
QUICK: dict[str, Any] = {"compile": False, "resolution": "64,64", "save_every_n_steps": None}
PROMPT = "a drawn cat --w 64 --h 64 --s 2 --d 7"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install -y chromium"),
]


def quick(demo: Path, name: str, steps: int, **changes: Any) -> Path:
    """A variant of the demo that is quick, with nothing unset in the file."""
    path = variant(demo, name, max_train_steps=steps)
    chosen = {**read_toml(path), **QUICK, **changes}
    write_toml(path, {option: value for option, value in chosen.items() if value is not None})
    return path


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


def test_three_runs_go_one_after_another_through_a_reload_and_in_two_browsers(page, chromium, server, demo):
    names = ("first", "second", "third")
    steps = {"first": LONG, "second": 6, "third": 6}
    first, second, third = (start(page, variant(demo, name, max_train_steps=steps[name], **TELLS)) for name in names)
    expect(live(page)).to_have_attribute("data-run", str(first))
    expect(page.locator("#lora-start")).to_have_text("Add to queue")
    expect(page.locator(".live .waiting")).to_contain_text("2 queued")
    expect_step(page)
    page.reload()
    expect(live(page)).to_have_attribute("data-run", str(first))
    expect_step(page, brief(page, "first")["step"] + 1)
    go_to_runs(page)
    queue = page.locator(".queue li")
    expect(queue).to_have_count(3)
    page.locator(f".queue [data-run='{third}'] [data-action=up]").click()
    expect(queue.nth(1)).to_contain_text("third")
    with chromium.new_context(viewport={"width": 1400, "height": 1000}) as context:
        other = context.new_page()
        other.set_default_timeout(SLOW)
        other.goto(server)
        expect(live(other)).to_have_attribute("data-run", str(first))
        expect_step(other)
        go_to_runs(other)
        expect(other.locator(".queue li").nth(1)).to_contain_text("third")
        other.locator("#finetune-button").click()  # another tab shows the same run, and starts none beside it
        expect(other.locator("#finetune-run .run-name")).to_contain_text("first")
        expect(other.locator("#finetune-start")).to_have_text("Add to queue")
        other.locator("#finetune-run [data-action=stop]").click()
        # what a page still asks is lost with its browser
        wait_for(lambda: brief(page, "first")["state"] in ("stopping", "stopped"))
    wait_for(lambda: brief(page, "second")["state"] == "finished", TRAINING / 1000)
    runs = [brief(page, name) for name in ("first", "third", "second")]
    assert [run["state"] for run in runs] == ["stopped", "finished", "finished"]
    for one, following in pairwise(runs):
        assert one["ended"] <= following["started"]  # never two at once
    look_at(page, second)
    expect_badge(page, "Finished")
    expect(live(page).locator(".result code")).to_contain_text("second.safetensors")


def test_recompiles_and_graph_breaks_are_shown_with_their_reasons(page, flux_demo, tmp_path):
    make_folder(tmp_path / "data" / "1_cat", [(128, 128), (128, 64)])
    sizes = {"train_data_dir": str(tmp_path / "data"), "resolution": "128,128", "enable_bucket": True}
    buckets = {"min_bucket_reso": 64, "max_bucket_reso": 128, "bucket_reso_steps": 32, "train_batch_size": 1}
    compiled = {"compile": True, "compile_backend": "eager", "learning_rate": 1e-4}
    run = start(page, quick(flux_demo, "breaks", 4, **sizes, **buckets, **compiled, **BREAKS))
    look_at(page, run)
    expect_badge(page, "Finished")
    section = live(page).locator("[data-section=compile]")
    expect(section).to_contain_text(re.compile(r"[1-9]\d* graphs · [1-9]\d* recompiles · [1-9]\d* graph breaks"))
    expect(section).to_contain_text(re.compile(r"Graph breaks at breaking_network\.py:\d+"))
    expect(live(page).locator("[data-section=warnings]")).to_contain_text("the code there runs uncompiled")
    section.get_by_text("Every graph").click()
    reasons = section.locator("tbody tr", has_text=re.compile(r"size of .+ is \d+ instead of \d+"))
    assert reasons.count() > 0
    plot, marked = live(page).locator(".curves-plot"), live(page).locator(".curves-readout p span")
    plot.focus()
    page.keyboard.press("Home")
    expect(marked.filter(has_text="graph break at")).not_to_have_count(0)
    page.keyboard.press("ArrowRight")
    expect(marked.filter(has_text=re.compile("size of .+ instead of"))).not_to_have_count(0)


def test_a_training_is_asked_for_a_sample_and_a_model_outlives_a_killed_gui_and_is_continued(page, gui: Gui, flux_demo):
    prompts = flux_demo.with_name("prompts.txt")
    prompts.write_text(f"{PROMPT}\n")
    long = start(page, quick(flux_demo, "long", LONG, sample_prompts=str(prompts)))
    behind = start(page, variant(flux_demo, "behind", max_train_steps=3, **TELLS))
    expect(live(page)).to_have_attribute("data-run", str(long))
    expect_step(page)
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
    with page.expect_download() as download:
        live(page).locator(".files a").first.click()
    assert download.value.path().stat().st_size > 1000

    gui.kill()
    expect(page.locator("#studio-banner")).to_contain_text("The GUI is not responding. Training continues")
    gui.start()
    expect(page.locator("#studio-banner")).not_to_contain_text("not responding")
    assert brief(page, "long")["state"] == "running"
    assert brief(page, "behind")["state"] == "queued"
    page.reload()
    expect(live(page)).to_have_attribute("data-run", str(long))
    expect_step(page, brief(page, "long")["step"] + 1)
    press(page, "stop")
    wait_for(lambda: brief(page, "long")["state"] == "stopped")  # the page then shows the one behind
    assert list((flux_demo.parent / "output").glob("long*-state")), "the state to continue from"
    wait_for(lambda: brief(page, "behind")["state"] == "finished", TRAINING / 1000)  # the queue went on
    assert brief(page, "behind")["id"] == behind
    before = brief(page, "long")
    heard = [event for event in RunFolder(Path(before["folder"])).events() if event["kind"] == "heard"]
    assert [event["command"] for event in heard] == ["sample", "save", "stop"]

    look_at(page, long)
    press(page, "continue")
    wait_for(lambda: brief(page, "long")["id"] != long)
    again = brief(page, "long")["id"]
    look_at(page, again)
    expect_step(page, before["step"] + 1)
    press(page, "stop")
    expect_badge(page, "Stopped")
    steps = [
        [event["step"] for event in RunFolder(Path(run["folder"])).events() if event["kind"] == "step"]
        for run in (before, brief(page, "long"))
    ]
    assert steps[0] == list(range(1, before["step"] + 1))
    assert steps[1] == list(range(before["step"] + 1, steps[1][-1] + 1))  # no step is lost and none is done twice


def test_a_failed_run_says_what_is_wrong_and_what_to_look_at_and_the_queue_goes_on(page, demo):
    failed = start(page, variant(demo, "broken", **FAILS))
    start(page, variant(demo, "after", max_train_steps=3, **TELLS))
    wait_for(lambda: brief(page, "after")["state"] == "finished", TRAINING / 1000)
    look_at(page, failed)
    expect_badge(page, "Failed")
    expect(live(page).locator(".message-error")).to_contain_text("optimizer_type: cannot find 'nowhere.Optimizer'")
    expect(page.locator(f".history [data-run='{failed}'] .badge")).to_have_attribute("title", re.compile("nowhere"))
