"""The tab Machine in real Chromium, with the real checks: shown as they come, cancelled, and downloaded."""

import zipfile
from pathlib import Path
from typing import Any

import pytest

from browser.page_help import CHROMIUM, expect
from browser.test_page_width import too_wide

pytest.importorskip("playwright.sync_api")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install -y chromium"),
]


@pytest.fixture
def machine(page: Any) -> Any:
    page.locator("#machine-button").click()
    shown = page.locator("#machine")
    expect(shown.locator("[data-action=check-machine]")).to_be_enabled()
    return shown


def test_checks_are_shown_as_they_come_and_can_be_cancelled(machine: Any) -> None:
    machine.locator("[data-action=check-machine]").click()
    expect(machine.locator(".findings tr").first).to_contain_text("Python")
    expect(machine.locator("[role=status]").first).to_contain_text("Checking: ")
    machine.locator("[data-action=cancel-check]").click()
    expect(machine.locator(".message-error")).to_contain_text("The checks were cancelled")
    expect(machine.locator("[data-action=check-machine]")).to_be_enabled()


def test_diagnostics_are_downloaded_with_all_checks(page: Any, machine: Any, tmp_path: Path) -> None:
    with page.expect_download() as coming:
        machine.locator("[data-action=download-diagnostics]").click()
    coming.value.save_as(tmp_path / "d.zip")
    with zipfile.ZipFile(tmp_path / "d.zip") as archive:
        lines = archive.read("doctor.txt").decode().splitlines()
    assert [line for line in lines if line.startswith("problem")] == []
    assert any(line.startswith("ok       Compiled block") for line in lines)
    expect(machine.locator(".finding-ok", has_text="Compiled block")).to_be_visible()
    assert too_wide(page) == set()
