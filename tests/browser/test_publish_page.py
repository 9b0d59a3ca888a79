"""The dialog that publishes a run, and the tab of textual inversion."""

import zipfile
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from sd_scripts.formats.toml_files import write_toml
from sd_scripts.runs.folder import new_run_folder
from sd_scripts.runs.store import RunStore
from tests.browser.page_help import expect, field, settled


def test_a_run_is_published_as_a_zip_with_the_card_that_was_edited(page: Any, gui: Any, tmp_path: Path) -> None:
    run = new_run_folder(tmp_path / "runs", "published")
    file = tmp_path / "published.safetensors"
    safetensors.torch.save_file({"lora_unet_x.lora_down.weight": torch.ones(2, 2)}, file)
    write_toml(run.config, {"family": "sdxl", "method": "lora", "output_name": "published"})
    log = run.log()
    log("started", family="sdxl", method="lora", max_steps=1)
    log("saved", path=str(file), step=1)
    log("finished", step=1, path=str(file))
    log.close()
    RunStore(gui.runs).add(run, name="published", tab="lora", family="sdxl", state="finished")
    page.locator("#runs-button").click()
    page.locator(".history .run-link", has_text="published").click()
    page.locator("#runs-run [data-action=publish]").click()
    dialog = page.locator("dialog.publish")
    card = dialog.locator("textarea")
    expect(card).to_be_visible()
    assert "base_model" in card.input_value()
    dialog.locator("[data-action=upload]").click()
    refused = dialog.locator(".message-error")
    expect(refused).to_contain_text("Repository (repo_id): enter the repository")
    refused.get_by_role("button", name="Repository").click()
    expect(dialog.get_by_role("textbox", name="Repository")).to_be_focused()
    card.fill("my own card")
    with page.expect_download() as download:
        dialog.locator("[data-action=zip]").click()
    with zipfile.ZipFile(download.value.path()) as packed:
        assert packed.read("README.md") == b"my own card\n"
        assert "published.safetensors" in packed.namelist()


def test_the_textual_inversion_tab_asks_for_a_token(page: Any) -> None:
    page.locator("#textual_inversion-button").click()
    settled(page, "#textual_inversion")
    expect(field(page, "token_string", "textual_inversion")).to_be_visible()
    field(page, "token_string", "textual_inversion").fill("mycat")
    page.locator("#textual_inversion-browse").click()
    expect(page.locator("dialog.browse[open]")).to_be_visible()
