"""The page fits its window: no part of it scrolls sideways, in real Chromium with scrollbars that take room."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.runs.folder import new_run_folder
from sd_scripts.runs.store import RunStore
from tests.browser.page_help import Gui, expect, settled

playwright = pytest.importorskip("playwright.sync_api")


WIDTHS = (1400, 800, 390)
SCROLLS_SIDEWAYS = """() => {
  const shown = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_ELEMENT, (element) =>
    element.getClientRects().length ? NodeFilter.FILTER_ACCEPT  // what is in a hidden part is not looked at
      : getComputedStyle(element).display === "none" ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_SKIP);
  const wide = [];
  for (let element = shown.currentNode; element; element = shown.nextNode())
    if (element.scrollWidth > element.clientWidth) wide.push(element);
  return wide.filter((element) => element === document.documentElement
    || ["auto", "scroll"].includes(getComputedStyle(element).overflowX))
  .map((element) => {
    const end = element.getBoundingClientRect().left + element.clientWidth + 1;
    const inside = [...element.querySelectorAll("*")].filter((each) => each.getBoundingClientRect().right > end);
    const name = (each) => `${each.tagName}#${each.id}.${each.className}`;
    return `${name(element)}: ${element.scrollWidth} in ${element.clientWidth}: ${inside.map(name).slice(0, 8)}`;
  });
}"""
OPEN_PANELS = """(tab) => [...document.querySelectorAll(`#${tab} .gr-accordion`)]
  .filter((panel) => panel.querySelector(":scope > .label-wrap.open")).map((panel) => panel.id)"""
TURN = """([tab, open, only]) => {
  const heads = [...document.querySelectorAll(`#${tab} .gr-accordion > .label-wrap`)]
    .filter((head) => head.classList.contains("open") !== open && head.getClientRects().length)
    .filter((head) => !only || only.includes(head.parentElement.id));
  heads.forEach((head) => head.click());
  return heads.length;
}"""


LONG = "a_long_name_of_a_run_of_somebody_who_writes_everything_into_it"


def list_runs(list_of_runs: Path) -> None:
    """Add runs of the past, with long names and reasons, and waiting ones."""
    home = list_of_runs.parent
    store = RunStore(list_of_runs)
    store.pause(True)
    for number, error in enumerate(("", "", f"train_data_dir: folder not found: /data/{LONG}")):
        folder = new_run_folder(home / "long", f"{LONG}{number}")
        folder.config.write_text(f'output_name = "{LONG}"\nseed = {number}\n')
        with closing(folder.log()) as log:
            log("started", max_steps=5000, epochs=10)
            for step in range(1, 50):
                log("step", step=step, epoch=1, loss=1 / step, average=0.25, lr={"unet": 1e-4}, seconds=0.1)
            (made := home / f"{LONG}-step00005000.safetensors").write_bytes(b"0" * 12_345_678)
            log("saved", path=str(made), step=5000)
            log("failed", error=error) if error else log("finished", step=5000)
        row = store.add(folder, name=f"{LONG}{number}", tab="finetune", family="flux", gpus="cpu", state="running")
        results = () if error else (f"/home/somebody/models/loras/{LONG}.safetensors",)
        facts = {"error": error, "step": 5000, "max_steps": 5000, "results": results}
        store.update(row.id, started=1.0)
        store.end(row.id, "failed" if error else "finished", ended=9999.0, **facts)
    for number in range(2):
        store.add(home / f"waits{number}", name=f"{LONG}-waits{number}", tab="lora", family="sdxl", gpus="cpu")
    store.close()


@pytest.fixture
def runs(gui: Gui) -> Iterator[None]:
    """The GUI has runs."""
    list_runs(gui.runs)
    yield
    gui.clear()


def too_wide(page: Any) -> set[str]:
    """What scrolls sideways in a window of any width."""
    found = set()
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")  # charts
        found |= {f"{width}: {wide}" for wide in page.evaluate(SCROLLS_SIDEWAYS)}
    page.set_viewport_size({"width": WIDTHS[0], "height": 900})
    return found


def turn(page: Any, tab: str, *, is_open: bool, only: list[str] | None = None) -> None:
    """Unfold or fold the panels of a tab, level by level: all of them, or the ones with these ids."""
    while page.evaluate(TURN, [tab, is_open, only]):
        settled(page, f"#{tab}")


FAMILIES = {
    "lora": ("SDXL", "FLUX.1"),
    "dreambooth": ("FLUX.1",),
    "finetune": ("SDXL",),
    "textual_inversion": ("SDXL",),
}
"""Tab -> the families whose controls are checked in it; whole models' are the same in two tabs."""


@pytest.mark.usefixtures("runs")
def test_nothing_scrolls_sideways_at_any_width_with_panels_folded_and_unfolded(page):
    found: dict[str, set[str]] = {}
    for tab, families in FAMILIES.items():
        page.evaluate("(tab) => document.getElementById(`${tab}-button`).click()", tab)
        expect(page.locator(f"#{tab}-start")).to_be_visible()
        settled(page, f"#{tab}")
        were_open = page.evaluate(OPEN_PANELS, tab)
        if tab == "lora":  # a folded panel shows only parts of an unfolded one
            turn(page, tab, is_open=False)
            found["folded"] = too_wide(page)
        for family in families:
            if len(families) > 1:  # else there is no choice
                page.locator(f"#{tab}-family").get_by_text(family, exact=True).click()
            settled(page, f"#{tab}")
            turn(page, tab, is_open=True)
            found[f"{tab} {family}"] = too_wide(page)
        turn(page, tab, is_open=False)
        turn(page, tab, is_open=True, only=were_open)
    page.evaluate("document.getElementById('runs-button').click()")
    page.locator(".history [data-run] .run-link").last.click()
    expect(page.locator("#runs-run .studio-chart canvas").first).to_be_visible()
    found["runs"] = too_wide(page)
    for box in page.locator(".history tbody input").all():
        box.check()
    page.locator("[data-action=compare]").click()
    expect(page.locator(".comparison table")).to_be_visible()
    found["comparison"] = too_wide(page)
    assert {where: wide for where, wide in found.items() if wide} == {}


def test_scrollbars_are_dark_where_the_page_is(page):
    scheme = "getComputedStyle(document.documentElement).colorScheme"
    assert page.evaluate(scheme) == "light"
    page.locator("#theme-switch").click()
    assert page.evaluate(scheme) == "dark"
    page.locator("#theme-switch").click()
    assert page.evaluate(scheme) == "light"


def test_a_link_to_a_tab_without_room_in_the_row_of_tabs_opens_it(page: Any) -> None:
    """At 200 % in a window of 1400 pixels, the last tabs are in a menu."""
    page.set_viewport_size({"width": 700, "height": 450})
    expect(page.locator("#machine-button")).to_be_hidden()
    page.evaluate("Studio.goTo('machine')")
    expect(page.locator("#machine[role=tabpanel]")).to_be_visible()
