"""One Chromium, one GUI and one miniature demo for a module of tests of the page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser.page_help import CHROMIUM, QUIET, SLOW, SMALL, Gui, settled
from sd_scripts.formats.toml_files import read_toml, write_toml

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
expect.set_options(timeout=SLOW)


@pytest.fixture(scope="module")
def gui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gui]:
    """One GUI for the module, with a home of its own."""
    gui = Gui(tmp_path_factory.mktemp("state"))
    gui.start()
    yield gui
    gui.stop()


@pytest.fixture(scope="module")
def server(gui: Gui) -> str:
    """Where a browser begins."""
    return gui.address


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM,
            headless=True,
            args=QUIET,
            ignore_default_args=["--hide-scrollbars"],  # people see those that take room, and what they uncover
        )
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any, gui: Gui, server: str) -> Iterator[Any]:
    """A browser of its own, which must not call anyone but our server."""
    context = chromium.new_context(viewport={"width": 1400, "height": 1000}, base_url=server)
    strangers: list[str] = []
    context.on("request", lambda request: strangers.append(request.url) if _is_strange(request.url, gui.url) else None)
    refused: list[str] = []
    context.on("console", lambda line: refused.append(line.text) if "Content Security Policy" in line.text else None)
    page = context.new_page()
    page.set_default_timeout(SLOW)
    page.goto(server)
    expect(page.locator("#lora-start")).to_be_visible()
    settled(page, "#lora")
    yield page
    context.close()
    assert strangers == []
    assert refused == []


def _is_strange(url: str, server: str) -> bool:
    return not url.startswith((server, "data:", "blob:"))


def _demo(folder: Path, family: str) -> Path:
    from sd_scripts.demo import make

    made = make(folder, family)
    write_toml(made, {**read_toml(made), **SMALL})
    return made


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Settings that train the miniature; a path with a space in it."""
    return _demo(tmp_path_factory.mktemp("the demo"), "sdxl")


@pytest.fixture(scope="module")
def flux_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _demo(tmp_path_factory.mktemp("flux demo"), "flux")
