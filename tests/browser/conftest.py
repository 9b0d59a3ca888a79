"""One Chromium, one GUI and one miniature demo of each family for all tests of the page.

They end with these tests: an open page and its GUI take more than half a core from the tests that follow."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.formats.toml_files import read_toml, write_toml
from tests.browser.page_help import ALL_SETTINGS, CHROMIUM, QUIET, SLOW, SMALL, Gui, expect, in_light_dom, settled
from tests.support.hub.files import ModelSite, serving
from tests.support.suite.spending import PAGES, spend

playwright = pytest.importorskip("playwright.sync_api")

WINDOW: Any = {"width": 1400, "height": 1000}
"""Each test begins in a window of this size."""


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test in this folder, and skip them without Chromium."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install -y chromium"))


@pytest.fixture(scope="package")
def hub() -> Iterator[ModelSite]:
    """The only Hub that the GUI can reach."""
    site = ModelSite()
    with serving(site):
        yield site


@pytest.fixture(scope="package")
def _gui(tmp_path_factory: pytest.TempPathFactory, hub: ModelSite) -> Iterator[Gui]:
    gui = Gui(tmp_path_factory.mktemp("state"), hub=hub.url)
    gui.start()
    yield gui
    gui.stop()


@pytest.fixture(scope="module")
def gui(_gui: Gui) -> Iterator[Gui]:
    """A GUI with a home of its own, whose list of runs is empty."""
    yield _gui
    _gui.clear()


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM,
            headless=True,
            args=QUIET,
            ignore_default_args=["--hide-scrollbars"],  # people see those that take room, and what they uncover
        )
        with pytest.MonkeyPatch.context() as patch:
            for holder in (playwright.Page, playwright.Locator):
                patch.setattr(holder, "locator", in_light_dom(holder.locator))
            yield browser
        browser.close()


class Visit:
    """A browser of its own, which must not call anyone but our server."""

    def __init__(self, chromium: Any, gui: Gui) -> None:
        self._context = chromium.new_context(
            viewport=WINDOW,
            base_url=gui.address,
            reduced_motion="reduce",  # where no GPU draws it, a moving progress bar takes a tenth of a core
        )
        self._context.grant_permissions(["clipboard-write"])  # which a person gives by the click
        self.faults: list[str] = []
        self._context.on("request", lambda request: self._note(request.url, gui.url))
        self._context.on("console", lambda line: self._note_refusal(line.text))
        self._context.add_init_script(ALL_SETTINGS)
        self.page = self._context.new_page()
        self.page.on("load", lambda _: spend(PAGES))
        self.page.set_default_timeout(SLOW)
        self.page.on("response", self._note_answer)
        self.page.goto(gui.address)
        expect(self.page.locator("#lora-start")).to_be_visible()
        settled(self.page, "#lora")
        self.page.remove_listener("response", self._note_answer)

    def _note(self, url: str, ours: str) -> None:
        if not url.startswith((ours, "data:", "blob:")):
            self.faults.append(f"asked for {url}")

    def _note_answer(self, answer: Any) -> None:
        """The page asks for nothing that whoever may open it does not get."""
        if answer.status >= 400:
            self.faults.append(f"got {answer.status} from {answer.url}")

    def _note_refusal(self, line: str) -> None:
        if "Content Security Policy" in line:
            self.faults.append(line)

    def close(self) -> None:
        self._context.close()


@pytest.fixture(scope="package")
def _visits(chromium: Any, _gui: Gui) -> Iterator[list[Visit]]:
    """The unfinished one, if any."""
    visits: list[Visit] = []
    yield visits
    for visit in visits:
        visit.close()


@pytest.fixture
def page(request: pytest.FixtureRequest, _visits: list[Visit], chromium: Any, gui: Gui) -> Iterator[Any]:
    """The page, perhaps as the test before left it, for tests that start by opening a file or choosing a run:
    loading it takes longer than most tests. After a failure the next test has a new one."""
    if not _visits:
        _visits.append(Visit(chromium, gui))
    (visit,) = _visits
    failed = request.session.testsfailed
    visit.page.set_viewport_size(WINDOW)
    visit.page.evaluate("document.querySelectorAll('dialog[open]').forEach((dialog) => dialog.close())")
    visit.page.locator("#lora-button").click()
    yield visit.page
    if request.session.testsfailed > failed or visit.faults:
        _visits.clear()
        visit.close()
    assert visit.faults == []


@pytest.fixture
def stranger(_visits: list[Visit]) -> None:
    """Whoever opens `page` was never here."""
    while _visits:
        _visits.pop().close()


def _demo(folder: Path, family: str) -> Path:
    from sd_scripts.demo import make_untrained

    made = make_untrained(folder, family)
    write_toml(made, {**read_toml(made), **SMALL})
    return made


@pytest.fixture(scope="package")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Settings that train the miniature; a path with a space in it."""
    return _demo(tmp_path_factory.mktemp("the demo"), "sdxl")


@pytest.fixture(scope="package")
def flux_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _demo(tmp_path_factory.mktemp("flux demo"), "flux")


@pytest.fixture(scope="package")
def kontext_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _demo(tmp_path_factory.mktemp("kontext demo"), "flux_kontext")
