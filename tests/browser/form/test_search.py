"""The search over all settings: its ranking on the real index, and the way through it with the keyboard alone."""

from pathlib import Path
from typing import Any

import pytest

from kohya_gui.theme import asset
from sd_scripts.formats.toml_files import write_toml
from tests.browser.page_help import Gui, ask_for, expect
from tests.support.scripts import SDXL_LORA

pytest.importorskip("playwright.sync_api")

THIRTY = {
    "pretrained_model_name_or_path": ("Pretrained model name or path", "base model"),
    "train_data_dir": ("Image folder", "training images"),
    "output_name": ("Trained Model output name", "output name"),
    "save_model_as": ("Save trained model as", "file format"),
    "train_batch_size": ("Train batch size", "batch size"),
    "max_train_epochs": ("Epoch", "max train epochs"),
    "max_train_steps": ("Max train steps", "train steps"),
    "save_every_n_epochs": ("Save every N epochs", "save every"),
    "caption_extension": ("Caption file extension", "caption extension"),
    "mixed_precision": ("Mixed precision", "precision"),
    "num_cpu_threads_per_process": ("Number of CPU threads per core", "CPU threads"),
    "seed": ("Seed", "seed"),
    "cache_latents": ("Cache latents", "latents"),
    "learning_rate": ("Learning rate", "learning rate"),
    "lr_scheduler": ("LR Scheduler", "schedule"),
    "lr_warmup_steps": ("LR warmup (% of total steps)", "warm-up"),
    "optimizer_type": ("Optimizer", "optimizer"),
    "optimizer_args": ("Optimizer extra arguments", "optimizer arguments"),
    "resolution": ("Max resolution", "resolution"),
    "enable_bucket": ("Enable buckets", "aspect buckets"),
    "text_encoder_lr": ("Text Encoder learning rate", "text encoder LR"),
    "unet_lr": ("Unet learning rate", "U-Net LR"),
    "network_dim": ("Network Rank (Dimension)", "rank"),
    "network_alpha": ("Network Alpha", "alpha"),
    "network_dropout": ("Network dropout", "dropout"),
    "scale_weight_norms": ("Scale weight norms", "largest weight norm"),
    "min_snr_gamma": ("Min SNR gamma", "min-snr"),
    "ip_noise_gamma": ("IP noise gamma", "input perturbation"),
    "caption_dropout_rate": ("Rate of caption dropout", "caption dropout"),
    "gradient_checkpointing": ("Gradient checkpointing", "checkpointing"),
}
"""Key -> its label in kohya_ss, and what somebody types who knows ours."""


MUSUBI_TUNER = {
    "dit": "pretrained_model_name_or_path",
    "turbo_dit": "sample_model",
    "vae": "vae",
    "discrete_flow_shift": "discrete_flow_shift",
    "gradient_checkpointing_cpu_offload": "cpu_offload_checkpointing",
    "fp8_scaled": "fp8_base",
    "fp8_t5": "quantize_text_encoders",
}
"""Name in musubi-tuner -> ours."""


@pytest.fixture(scope="module")
def finder(chromium: Any, gui: Gui) -> Any:
    """An empty page that has the ranking and the index, and nothing else."""
    page = chromium.new_page()
    page.add_script_tag(content=asset("form/search_rank.js"))
    page.evaluate("(index) => { window.all = Ranking.entries(index, 'lora'); }", gui.ask("settings"))
    yield page
    page.close()


def find(finder: Any, words: str) -> list[str]:
    found: list[str] = finder.evaluate("(words) => Ranking.find(all, words).map(({ name }) => name)", words)
    return found


def test_thirty_settings_are_found_by_the_name_in_kohya_ss_by_ours_and_by_the_key(finder: Any) -> None:
    late = []
    for key, names in THIRTY.items():
        for words in (key, *names):
            if key not in find(finder, words)[:3]:
                late.append((key, words, find(finder, words)[:3]))
    assert late == []


def test_a_name_of_musubi_tuner_finds_our_setting(finder: Any) -> None:
    assert {name: find(finder, name)[0] for name in MUSUBI_TUNER} == MUSUBI_TUNER
    assert {"qwen3", "qwen3_vl"} <= set(find(finder, "text_encoder")[:5])


def test_a_key_is_its_own_first_hit(finder: Any) -> None:
    names = finder.evaluate("all.map(({ name }) => name)")
    assert [name for name in names if find(finder, name)[0] != name] == []


def test_words_with_a_wrong_letter_and_odd_text_find_what_they_can(finder: Any) -> None:
    assert find(finder, "lerning rate")[0] == "learning_rate"
    assert find(finder, "gradeint checkpointing")[0] == "gradient_checkpointing"
    for words in ("(((", "\\", "zzzz", "学习率", "a" * 5000):
        assert find(finder, words) in ([], find(finder, "")), words


def test_a_setting_is_found_changed_and_shown_without_the_mouse(page: Any, tmp_path: Path) -> None:
    file = tmp_path / "search.toml"
    write_toml(file, {**SDXL_LORA.identity, "huber_c": 0.2})
    ask_for(page, file)
    expect(page.locator("#lora-message")).to_contain_text("Opened search.toml")
    page.locator("#lora-button").focus()
    page.keyboard.press("/")
    dialog = page.locator("#settings-search")
    page.keyboard.type("loss huber")
    words = dialog.get_by_role("combobox")
    options = dialog.get_by_role("option")
    expect(options.first).to_contain_text("Huber")
    names = options.locator("code").all_text_contents()
    page.keyboard.press("ArrowDown")
    chosen = dialog.locator("[aria-selected=true]")
    assert words.get_attribute("aria-activedescendant") == chosen.get_attribute("id")
    assert chosen.locator("code").text_content() == names[1]
    page.keyboard.press("Control+a")
    page.keyboard.type("huber_c")
    expect(chosen).to_contain_text("0.2")
    # its panel was never unfolded: the value is changed in a control that does not exist yet
    assert page.locator("#lora-huber_c").count() == 0
    page.keyboard.press("Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("many")
    page.keyboard.press("Enter")
    expect(dialog.locator(".search-problem")).to_contain_text("is not a number")
    page.keyboard.press("Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("0.3")
    page.keyboard.press("Enter")
    expect(chosen).to_contain_text("0.3")
    expect(words).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    expect(page.locator("#lora-huber_c.found-setting")).to_be_visible()  # for a few seconds
    field = page.locator("#lora-huber_c input")
    expect(field).to_be_focused()
    expect(field).to_have_value("0.3")
    page.keyboard.press("F1")  # what the field is, from its documentation
    expect(dialog.locator(".search-detail h3")).to_have_text("Huber c")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_who_uses_the_find_of_the_browser_learns_of_folded_panels(page: Any) -> None:
    page.locator("#lora-button").focus()
    page.keyboard.press("Control+f")
    note = page.locator("#studio-toasts")
    expect(note).to_contain_text("does not see folded panels")
    note.get_by_role("button", name="Search all settings").click()
    expect(page.locator("#settings-search")).to_be_visible()
    page.keyboard.press("Escape")
