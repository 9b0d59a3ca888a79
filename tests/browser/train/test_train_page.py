"""The Simple view in real Chromium: it leads to a run, and is a view of the form's settings."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.families.cards.registry import card_of
from sd_scripts.formats.toml_files import read_toml
from sd_scripts.settings.reading import from_values
from tests.browser.page_help import SMALL, TELLS, TRAINING, expect, field, variant
from tests.browser.test_page_width import SCROLLS_SIDEWAYS, WIDTHS
from tests.support.hub.files import ModelSite
from tests.support.scripts import SDXL_LORA

playwright = pytest.importorskip("playwright.sync_api")
Page = Any
COUNTS = """() => {
  Object.assign(window, { clicks: 0, fields: new Set() });
  addEventListener("click", ({ detail }) => (window.clicks += detail > 0), true);
  addEventListener("input", ({ target, isTrusted }) => isTrusted && window.fields.add(target), true);
}"""
"""Counts the clicks of a mouse and the fields that something is typed into."""


@pytest.fixture
def simple(page: Page) -> Iterator[Page]:
    show(page, "Simple")
    expect(page.locator(".columns > .train")).to_be_visible()
    yield page
    page.set_viewport_size({"width": 1400, "height": 1000})
    show(page, "All settings")


def show(page: Page, view: str) -> None:
    page.locator(".train-view").get_by_text(view, exact=True).click()


def entered(page: Page, name: str) -> Any:
    return page.locator(f"#train-{name}")


def enter(page: Page, name: str, value: object) -> None:
    entered(page, name).fill(str(value))
    entered(page, name).press("Tab")


def card(page: Page, title: str) -> Any:
    return page.locator(f'.train-card[aria-label="{title}"]')


def unfold(page: Page, title: str) -> None:
    """Press the head of a card, if it is folded: a run that an earlier test started may have folded it."""
    head = card(page, title).locator(".train-head")
    if head.get_attribute("aria-expanded") == "false":
        head.click()
    expect(head).to_have_attribute("aria-expanded", "true")


def settled(page: Page) -> None:
    """Wait until the cards show the form's settings of now."""
    expect(page.locator(".columns > .train:not([aria-busy])")).to_be_visible()


def value(page: Page, name: str, tab: str = "lora") -> Any:
    return page.evaluate("([tab, name]) => Drafts.value(tab, name)", [tab, name])


def put(page: Page, **values: Any) -> None:
    page.evaluate("(values) => Drafts.put('lora', values)", values)


@pytest.fixture
def flat(demo: Path, tmp_path: Path) -> Path:
    """The demo's images in a folder whose name gives no repeats."""
    (images,) = Path(read_toml(demo)["train_data_dir"]).iterdir()
    folder = tmp_path / "my cats"
    folder.mkdir()
    for file in images.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture
def downloadable(hub: ModelSite, demo: Path) -> str:
    """The miniature, as the file of SDXL that the Hub has; its name."""
    listed = card_of("sdxl").hub.files[0]
    hub.files[f"{listed.repo}/{listed.file}"] = Path(read_toml(demo)["pretrained_model_name_or_path"]).read_bytes()
    return listed.file


@pytest.mark.usefixtures("stranger")
def test_images_are_all_that_a_newcomer_needs_for_a_run(simple: Page, downloadable: str, flat: Path) -> None:
    """On a machine without a model: at most 12 clicks and 4 typed fields."""
    settled(simple)
    expect(card(simple, "Images")).to_contain_text("Choose the folder with your images.")
    expect(card(simple, "Model")).to_contain_text("Choose the file of the base model.")
    simple.locator("#lora-start").click()
    expect(simple.locator("#lora-message")).to_contain_text("2 problems")
    expect(entered(simple, "pretrained_model_name_or_path")).to_be_focused()
    assert tabs_to_start(simple) <= 20
    simple.evaluate(COUNTS)
    enter(simple, "train_data_dir", flat)
    expect(simple.locator(".train-strip img")).to_have_count(12)
    card(simple, "Model").get_by_text("Get models…").click()
    models = simple.locator("[data-models]")
    expect(models.locator("[data-action=get-missing]")).to_be_visible()
    # not the home of whoever tests
    models.get_by_label("Save in").evaluate("(field, folder) => (field.value = folder)", str(flat.parent / "models"))
    models.locator("[data-action=get-missing]").click()
    expect(models.locator(".models-download")).to_contain_text("Done")
    models.locator("[data-action=use-all]").click()
    settled(simple)
    assert Path(value(simple, "pretrained_model_name_or_path")).name == downloadable
    expect(card(simple, "Images").locator(".train-body")).to_be_hidden()
    expect(card(simple, "Images")).to_contain_text("12 images in my cats")
    assert (value(simple, "num_repeats"), value(simple, "output_name")) == ("12", "my_cats")
    simple.locator(".train-choices").get_by_text("Quick").click()
    settled(simple)
    assert (value(simple, "num_repeats"), value(simple, "max_train_epochs")) == ("4", "10")
    # the stand-in for the trainer reads steps, and a width and a height
    put(simple, output_dir=str(flat.parent / "out"), max_train_steps="3", resolution="128,128", **TELLS)
    # the prompt is still being typed when Start is pressed
    entered(simple, "prompts").fill("a photo of a cat")
    simple.locator("#lora-start").click()
    run = simple.locator("#lora-run")
    expect(run.locator(".run-name")).to_contain_text("my_cats")
    expect(card(simple, "How").locator(".train-body")).to_be_hidden()
    expect(run.locator(".badge")).to_have_text("Finished", timeout=TRAINING)
    clicks, fields = simple.evaluate("[clicks, fields.size]")
    assert clicks <= 12
    assert fields <= 4
    shutil.rmtree(flat.parent / "models")  # the next newcomer has none either
    (folder,) = (flat.parent / "out" / "runs").iterdir()
    started = read_toml(folder / "config.toml")
    assert started["sample_every_n_epochs"] == 1
    assert Path(started["sample_prompts"]).read_text() == "a photo of a cat\n"
    assert (started["num_repeats"], started["max_train_epochs"]) == (4, 10)


def tabs_to_start(page: Page) -> int:
    page.evaluate("document.activeElement.blur()")
    page.locator("h1").click()
    for count in range(1, 60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "lora-start":
            return count
    return 60


def test_a_settings_file_is_a_preset_and_chips_three_clicks_from_its_run(simple: Page, demo: Path) -> None:
    file = variant(demo, "veteran", learning_rate=2e-4, network_dim=4, max_train_steps=3, **TELLS, **SMALL)
    simple.evaluate("(folder) => localStorage.setItem('browse-folder', folder)", str(file.parent))
    simple.get_by_text("Open settings…").click()
    simple.locator("dialog.browse").get_by_text("veteran.toml").click()
    chips = simple.locator(".train-chip")
    rank = simple.locator('.train-chip[data-name="network_dim"]')
    expect(rank).to_contain_text("4")
    settled(simple)
    names = {chip.get_attribute("data-name") for chip in chips.all()}
    assert {"network_dim", "learning_rate"} <= names
    assert not {"output_name", "train_data_dir", "max_train_steps"} & names
    simple.locator("#lora-start").click()
    expect(simple.locator("#lora-run .run-name")).to_contain_text("veteran")
    runs = Path(read_toml(file)["output_dir"]) / "runs"
    (config,) = runs.glob("*-veteran/config.toml")
    assert read_toml(config) == from_values(SDXL_LORA, read_toml(file)).saved()
    rank.get_by_role("button").first.click()
    rank.locator("input").fill("24")
    rank.locator("input").press("Enter")
    expect(rank).to_contain_text("24")
    expect(field(simple, "network_dim")).to_have_value("24")
    rank.get_by_role("button", name="Reset").click()
    expect(rank).to_have_count(0)
    expect(field(simple, "network_dim")).to_have_value("16")


def test_what_is_trained_is_a_choice_and_the_rest_stays(simple: Page, demo: Path, flat: Path) -> None:
    settled(simple)
    unfold(simple, "Images")
    enter(simple, "train_data_dir", flat)
    settled(simple)
    unfold(simple, "How")
    model = value(simple, "pretrained_model_name_or_path")
    simple.locator(".train-choices").get_by_text("DreamBooth folders").click()
    expect(simple.locator("#dreambooth-start")).to_be_visible()
    simple.wait_for_function("(folder) => Drafts.value('dreambooth', 'train_data_dir') === folder", arg=str(flat))
    assert value(simple, "pretrained_model_name_or_path", "dreambooth") == model
    assert value(simple, "output_name", "dreambooth") == value(simple, "output_name")
    expect(simple.locator("#dreambooth-train_data_dir input, #dreambooth-train_data_dir textarea")).to_have_value(
        str(flat)
    )
    simple.locator(".train-choices").get_by_text("LoRA", exact=True).click()
    expect(simple.locator("#lora-start")).to_be_visible()


def test_the_view_is_remembered_and_fits_every_width(simple: Page) -> None:
    simple.reload()
    expect(simple.locator(".columns > .train")).to_be_visible()
    settled(simple)
    for title in ("Images", "Model", "How"):
        unfold(simple, title)
    for width in WIDTHS:
        simple.set_viewport_size({"width": width, "height": 1000})
        simple.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert simple.evaluate(SCROLLS_SIDEWAYS) == [], width  # the chart of a run has followed
