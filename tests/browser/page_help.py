"""What tests of the page share: Chromium, a GUI process with a home of its own, and the hands of a person."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sd_scripts.formats.toml_files import read_toml, write_toml
from sd_scripts.runs.run_state import LIVING
from tests.support.runs import wait_for

ROOT = Path(__file__).parents[2]
STAND_IN = Path(__file__).with_name("stand_in")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
"""The headless shell has no windows, menus and extensions of its own, and takes a quarter less of the processor."""
QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
]
ALL_SETTINGS = "localStorage['train-view'] ??= 'all'"
"""A script by which a new browser shows the form, not the Simple view."""
TRAINING = 900_000
"""Milliseconds that a training of the miniature may take on two slow cores."""
SLOW = 180_000
"""Milliseconds in which the page answers, where training has the cores."""

OFTEN = 2_400
"""Milliseconds for which Playwright looks every 100 ms; allowed to wait longer, it looks every 500."""

SMALL = {
    "resolution": "128,128",
    "enable_bucket": False,
    "train_batch_size": 1,
    "save_every_n_steps": 5,
    "compile_backend": "eager",
    "num_cpu_threads_per_process": 1,
}
"""Settings that make a demo quick, even next to other tests."""


TELLS, FAILS = {"training_comment": "tells"}, {"training_comment": "fails"}
"""With these settings a GUI under test starts no trainer but a stand-in, which reports what one would report."""
BREAKS = {"training_comment": "breaks", "network_module": "tests.support.networks.breaking_network"}
"""With these settings it trains a network that torch.compile cannot capture."""


class Expectations:
    """Playwright's expectations of a locator, which at first are looked at often.

    Each look of Playwright's own that fails describes the page for the message, or what is seen of the element: 0.3 s.
    What can be waited for without that comes first, as a part of the expectation.
    """

    def __init__(self, locator: Any) -> None:
        from playwright.sync_api import expect

        self._locator, self._assertions = locator, expect(locator)

    def __getattr__(self, name: str) -> Callable[..., None]:
        assertion = getattr(self._assertions, name)

        def meet(*expected: Any, timeout: float = SLOW, **more: Any) -> None:
            _soon(lambda time: assertion(*expected, timeout=time, **more), timeout)

        return meet

    def to_be_visible(self, timeout: float = SLOW) -> None:
        _soon(lambda time: self._locator.wait_for(state="visible", timeout=time), timeout)

    def to_be_hidden(self, timeout: float = SLOW) -> None:
        """Or not be there."""
        _soon(lambda time: self._locator.wait_for(state="hidden", timeout=time), timeout)

    def to_contain_text(self, expected: Any, timeout: float = SLOW) -> None:
        self._meet_text("to_contain_text", expected, timeout)

    def to_have_text(self, expected: Any, timeout: float = SLOW, **more: Any) -> None:
        self._meet_text("to_have_text", expected, timeout, **more)

    def _meet_text(self, name: str, expected: Any, timeout: float, **more: Any) -> None:
        from playwright.sync_api import TimeoutError

        meet = self.__getattr__(name)
        if isinstance(expected, str | re.Pattern) and expected and not more:  # texts as a filter understands them
            try:
                holding = self._locator.filter(has_text=expected).first
                _soon(lambda time: holding.wait_for(state="attached", timeout=time), timeout)
            except TimeoutError:
                timeout = OFTEN  # enough for the message of the failure
        meet(expected, timeout=timeout, **more)


def _soon(wait: Callable[[float], None], timeout: float) -> None:
    from playwright.sync_api import TimeoutError

    try:
        wait(OFTEN)
    except (AssertionError, TimeoutError):
        wait(timeout)


def expect(locator: Any) -> Expectations:
    return Expectations(locator)


class Gui:
    """The real GUI as a process of its own, which can be killed and started again at the same address."""

    def __init__(self, state: Path, *flags: str, hub: str = "") -> None:
        """`hub` is the address of a stand-in for the Hugging Face Hub, which else cannot be reached."""
        self._state, self._flags = state, flags
        self._hub = {"HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0"} if hub else {"HF_HUB_OFFLINE": "1"}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.address = self.url
        """Where a browser begins: as the GUI printed it, with the token."""
        self.runs = state / "sd-scripts-studio" / "runs.sqlite"
        """Its list of runs."""

    def start(self) -> None:
        homes = dict.fromkeys(("XDG_STATE_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"), str(self._state))
        homes |= {
            **self._hub,
            "HF_HOME": str(self._state / "hf"),
            "HF_TOKEN": "",
            "TORCHINDUCTOR_CACHE_DIR": "",
        }  # a compiler cache of its own, to be cleared
        found = {"PYTHONPATH": os.pathsep.join([str(STAND_IN), *filter(None, [os.environ.get("PYTHONPATH")])])}
        command = [sys.executable, str(ROOT / "gui.py"), "--server_port", str(self._port), "--headless", *self._flags]
        with (self._state / "gui.log").open("a") as log:
            printed_before = log.tell()
            self._process = subprocess.Popen(
                command, env={**os.environ, **homes, **found}, stdout=log, stderr=subprocess.STDOUT, cwd=self._state
            )
        for _ in range(1500):
            printed = (self._state / "gui.log").read_text()
            if told := re.search(r"^Open in a browser: (\S+)\n", printed[printed_before:], re.M):
                self.address = told[1]
                return
            assert self._process.poll() is None, printed
            time.sleep(0.2)
        self.kill()
        raise AssertionError("the GUI does not answer")

    def stop(self) -> None:
        """End it and what it started: a run outlives its GUI, and would continue after the tests."""
        try:
            self.clear()
        finally:
            self._process.terminate()
            self._process.wait(300)

    def clear(self) -> None:
        """End all runs and empty the list of them."""
        if self._process.poll() is not None:  # a test failed between kill and start
            self.start()
        self.ask("queue", {"paused": True, "after_failure": True})
        for run in self.ask("board")["runs"]:
            with contextlib.suppress(urllib.error.HTTPError):  # it ended in the meantime
                if run["state"] in ("queued", *LIVING):
                    self.ask(f"run/{run['id']}/{'remove' if run['state'] == 'queued' else 'end'}", {})
        wait_for(lambda: not [run for run in self.ask("board")["runs"] if run["state"] in LIVING])
        self.ask("runs/forget", {"ids": [run["id"] for run in self.ask("board")["runs"]]})
        self.ask("queue", {"paused": False})

    def kill(self) -> None:
        """End it as a crash would: nothing is put in order."""
        self._process.kill()
        self._process.wait(300)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"X-Studio": "1", "Authorization": f"Bearer {self.address.partition('=')[2]}"}
        request = urllib.request.Request(f"{self.url}/studio/{path}", data, headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)


def in_light_dom(locator: Callable[..., Any]) -> Callable[..., Any]:
    """Let `locator` look for CSS selectors as CSS does: the page has no shadow roots, for which Playwright would
    look at each of its elements."""

    def find(of: Any, selector: Any, **more: Any) -> Any:
        is_css = isinstance(selector, str) and not re.match(r"[\w:]+=|//|\.\.", selector) and ">>" not in selector
        return locator(of, f"css:light={selector}" if is_css else selector, **more)

    return find


SETTLED = """(part) => new Promise((done) => {
  let frames = 0, known = 0, left = 1000;
  const look = () => {
    const now = part.querySelector(".block") ? part.querySelectorAll("*").length : 0;
    frames = now && now === known ? frames + 1 : 0;
    known = now;
    frames < 4 && left-- ? requestAnimationFrame(look) : done();
  };
  look();
})"""


def settled(page: Any, selector: str) -> None:
    """Wait until a part of the page that is looked at for the first time is all there.

    Gradio makes it then, and for two frames more forgets text typed into it, which only a test is quick enough for.
    """
    page.locator(selector).first.evaluate(SETTLED)


def unfold(page: Any, *titles: str, tab: str = "lora") -> None:
    for title in titles:
        head = page.locator(f"#{tab}-panel-{title} > .label-wrap")
        if "open" not in (head.get_attribute("class") or ""):
            head.click()
            settled(page, f"#{tab}-panel-{title}")


def field(page: Any, name: str, tab: str = "lora") -> Any:
    return page.locator(f"#{tab}-{name} input, #{tab}-{name} textarea").first


def choose(page: Any, name: str, value: str, tab: str = "lora") -> None:
    field(page, name, tab).click()
    page.get_by_role("option", name=value, exact=True).click()


def ask_for(page: Any, path: Path, tab: str = "lora") -> None:
    field(page, "file", tab).fill(str(path))
    field(page, "file", tab).press("Enter")
    page.locator(f"#{tab}-open").click()


def variant(demo: Path, name: str, **changes: object) -> Path:
    """The demo's settings with another name and a few changes, as a file next to them."""
    path = demo.with_name(f"{name}.toml")
    write_toml(path, {**read_toml(demo), "output_name": name, **changes})
    return path
