"""The tab Machine in real Chromium, with the quick ones of the real checks: shown, cancelled and downloaded."""

import zipfile
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.tools.doctor.torch_checks import CHECKS
from tests.browser.page_help import expect
from tests.browser.test_page_width import too_wide

pytest.importorskip("playwright.sync_api")


@pytest.fixture
def machine(page: Any) -> Any:
    page.locator("#machine-button").click()
    shown = page.locator("#machine")
    expect(shown.locator("[data-action=check-machine]")).to_be_enabled()
    return shown


def test_checks_are_shown_as_they_finish_and_can_be_cancelled(machine: Any) -> None:
    machine.locator("[data-action=check-machine]").click()
    expect(machine.locator(".findings tr").first).to_contain_text("Python")
    expect(machine.locator("[role=status]").first).to_contain_text("Checking: ")
    machine.locator("[data-action=cancel-check]").click()
    expect(machine.locator(".message-error")).to_contain_text("The checks were cancelled")
    expect(machine.locator("[data-action=check-machine]")).to_be_enabled()


def test_the_compiler_cache_is_exported_cleared_and_imported(page: Any, machine: Any, gui: Any, tmp_path: Path) -> None:
    folder = Path(gui.ask("compile-cache")["folder"])
    for key in ("akey", "bkey"):
        (folder / "aotautograd" / key).mkdir(parents=True, exist_ok=True)
        (folder / "aotautograd" / key / "entry").write_bytes(b"graph")
    shown = page.locator("#machine-compile-cache")
    page.locator("#runs-button").click()
    page.locator("#machine-button").click()
    expect(shown.locator("dl")).to_contain_text("2 graphs")
    expect(shown.locator("dl")).to_contain_text(str(folder))
    with page.expect_download() as coming:
        shown.locator("[data-action=export-compile-cache]").click()
        expect(shown.locator("[role=status]")).to_contain_text("Exported 2 graphs")  # else it shows why not
    coming.value.save_as(tmp_path / "cache.zip")
    shown.locator("[data-action=clear-compile-cache]").click()
    shown.locator("[data-action=confirm-clear-compile-cache]").click()
    expect(shown.locator("dl")).to_contain_text("Nothing yet")
    assert list(folder.iterdir()) == []
    shown.locator("[data-action=import-compile-cache]").click()
    page.locator("dialog.browse[open] .where").fill(str(tmp_path))
    page.locator("dialog.browse[open] .where").press("Enter")
    page.locator("dialog.browse[open] .entry", has_text="cache.zip").click()
    expect(shown.locator(".confirm")).to_contain_text("import only files that you trust")
    shown.locator("[data-action=confirm-import-compile-cache]").click()
    expect(shown.locator("[role=status]")).to_have_text("Imported 2 graphs")
    expect(shown.locator("dl")).to_contain_text("2 graphs")
    assert too_wide(page) == set()


def test_diagnostics_are_downloaded_with_the_checks(page: Any, machine: Any, tmp_path: Path) -> None:
    with page.expect_download() as coming:
        machine.locator("[data-action=download-diagnostics]").click()
    coming.value.save_as(tmp_path / "d.zip")
    with zipfile.ZipFile(tmp_path / "d.zip") as archive:
        lines = archive.read("doctor.txt").decode().splitlines()
    assert [line for line in lines if line.startswith("problem")] == []
    assert any(line.startswith("ok       Eager block") for line in lines)
    expect(machine.locator(".finding-ok", has_text="Eager block")).to_be_visible()
    assert too_wide(page) == set()


def test_a_slow_check_that_the_page_leaves_out_here_finds_nothing_wrong() -> None:
    found = next(check for check in CHECKS if check.name == "bitsandbytes").run()
    assert found.status == "ok", found
