"""The tab Models in real Chromium: from an empty machine to a model in the form."""

from pathlib import Path
from typing import Any

import pytest

from sd_scripts.families.cards.registry import card_of
from sd_scripts.formats.toml_files import read_toml
from tests.browser.page_help import expect
from tests.browser.test_page_width import too_wide
from tests.support.hub.files import TOKEN, ModelSite

pytest.importorskip("playwright.sync_api")
BASE = "pretrained_model_name_or_path"


@pytest.fixture
def sdxl(hub: ModelSite, demo: Path) -> str:
    """The miniature, as the file that the family lists."""
    listed = card_of("sdxl").hub.files[0]
    hub.files[f"{listed.repo}/{listed.file}"] = Path(read_toml(demo)[BASE]).read_bytes()
    hub.gated.add(listed.repo)
    return listed.file


def test_a_gated_model_is_downloaded_and_set_in_the_form(page: Any, sdxl: str, gui: Any, tmp_path: Path) -> None:
    page.locator("#models-button").click()
    models = page.locator("[data-models]")
    models.get_by_label("Model family").select_option("sdxl")
    models.get_by_label("Save in").fill(str(tmp_path))
    models.locator("[data-action=get-missing]").click()
    models.get_by_label("Token for Hugging Face").fill(TOKEN)
    models.get_by_role("button", name="Use this token").click()
    expect(models.locator(".models-download")).to_contain_text("Done")
    expect(models.locator(".models-files")).to_contain_text("SDXL checkpoint")
    assert not too_wide(page)
    models.locator("[data-action=use-all]").click()
    expect(page.locator("#lora-start")).to_be_visible()
    expect(page.locator(f"#lora-{BASE} textarea, #lora-{BASE} input").first).to_have_value(str(tmp_path / sdxl))
    (tmp_path / sdxl).unlink()  # the next one who looks has none
    assert not [file for file in gui.runs.parent.rglob("*.json") if TOKEN in file.read_text(errors="replace")]


def test_the_tabs_are_one_stop_of_the_tab_key_and_arrows_move_among_them(page: Any) -> None:
    focused = "document.activeElement.id"
    page.locator("#lora-button").focus()
    for key, tab in (("End", "machine"), ("ArrowRight", "lora"), ("ArrowLeft", "machine"), ("Home", "lora")):
        page.keyboard.press(key)
        assert page.evaluate(focused) == f"{tab}-button"
        expect(page.locator(f"#{tab}")).to_be_visible()
    page.keyboard.press("Tab")
    assert "button" not in page.evaluate(focused)


def test_a_pasted_address_lists_its_files_or_is_refused(page: Any, hub: ModelSite) -> None:
    hub.files["them/other/other.safetensors"] = b"weights"
    page.locator("#models-button").click()
    models = page.locator("[data-models]")
    address = models.get_by_label("From an address")
    address.fill("https://evil.example/model.safetensors")
    address.press("Enter")
    expect(models.locator(".message-error")).to_contain_text("Not the address of a model")
    address.fill("them/other")
    address.press("Enter")
    expect(models.get_by_role("button", name="Get 'other.safetensors'")).to_be_visible()
    expect(models).to_contain_text("7 bytes · mit")
