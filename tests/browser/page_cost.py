"""How soon the page answers in Chromium: python -m tests.browser.page_cost prints a table of medians."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from sd_scripts.demo import make
from tests.browser.page_help import ALL_SETTINGS, CHROMIUM, QUIET, Gui, ask_for, field, unfold, variant

TIMES = 5
REST = 0.5
"""Seconds without a request after which the page has done all it had to do; not counted."""

BUSY = 0.05
"""Seconds that a frame takes at least while the page works."""


class Watch:
    """Records when a page last did something: sent a request, received an answer, or drew."""

    def __init__(self, page: Any) -> None:
        self._page, self._open, self._last = page, 0, time.perf_counter()
        page.on("request", lambda request: self._note(request, 1))
        for end in ("requestfinished", "requestfailed"):
            page.on(end, lambda request: self._note(request, -1))

    def _note(self, request: Any, more: int) -> None:
        if "/studio/" in request.url or "/heartbeat/" in request.url:  # the live view's beat never rests
            return
        self._open += more
        self._last = time.perf_counter()

    def seconds(self, act: Callable[[], object]) -> float:
        """From the act until the page rests."""
        begin = time.perf_counter()
        act()
        rested = time.perf_counter()
        while True:
            asked = time.perf_counter()
            self._page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
            now = time.perf_counter()
            if self._open > 0 or now - asked > BUSY:
                rested = now
            rested = max(rested, self._last)
            if now - rested > REST:
                return rested - begin
            self._page.wait_for_timeout(10)


def until_seen(act: Callable[[], object], control: Any) -> float:
    """Seconds from the act until the control is seen."""
    begin = time.perf_counter()
    act()
    control.wait_for()
    return time.perf_counter() - begin


def preset_chosen(page: Any, watch: Watch) -> float:
    """From the choice of a preset of this family until the page rests; opening the list is not counted."""
    field(page, "preset").click()
    choice = page.get_by_role("option", name="FLUX.1 low memory 8 GB", exact=True)
    choice.wait_for()
    watch.seconds(lambda: None)
    return watch.seconds(choice.click)


def measured(gui: Gui, browser: Any, demo: Path) -> dict[str, float]:
    """Seconds of one person's way through a new page."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    context.add_init_script(ALL_SETTINGS)
    page = context.new_page()
    watch = Watch(page)
    flux = page.locator("#lora-family").get_by_text("FLUX.1", exact=True)
    found = {"a new page": watch.seconds(lambda: page.goto(gui.address))}
    found["another model family chosen, until its controls are seen"] = until_seen(
        flux.click, page.locator("#lora-clip_l")
    )
    watch.seconds(lambda: None)
    found["a preset chosen"] = preset_chosen(page, watch)
    unfold(page, "advanced-training", "torch-compile-settings")
    watch.seconds(lambda: None)
    switch = page.locator("#lora-compile-switch input")
    found["torch.compile switched on, until its controls are seen"] = until_seen(
        switch.click, page.locator("#lora-compile_mode")
    )
    found["a settings file opened"] = watch.seconds(lambda: ask_for(page, demo))
    name = field(page, "output_name")
    found["twelve letters typed"] = watch.seconds(lambda: name.press_sequentially("twelveletter"))
    found["Print command"] = watch.seconds(lambda: page.locator("#lora-print").click())
    found["the page loaded again, with a form to bring back"] = watch.seconds(page.reload)
    context.close()
    return found


def main() -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        demo = variant(make(Path(folder) / "demo", "sdxl"), "opened", output_name="x")
        gui = Gui(Path(folder))
        gui.start()
        browser = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=QUIET)
        try:
            rounds = [measured(gui, browser, demo) for _ in range(1 + TIMES)][1:]  # the first warms both up
        finally:
            browser.close()
            gui.stop()
    print("Load of the machine:", *(f"{load:.1f}" for load in os.getloadavg()))
    print("| | median of", TIMES, "| slowest |\n|---|---|---|")
    for what in rounds[0]:
        seconds = [each[what] for each in rounds]
        print(f"| {what} | {statistics.median(seconds):.1f} s | {max(seconds):.1f} s |")


if __name__ == "__main__":
    main()
