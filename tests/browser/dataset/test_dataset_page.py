"""The tab Dataset in real Chromium: a grid of images with few elements, for the mouse and for the keyboard alone."""

from pathlib import Path
from typing import Any

import pytest

from sd_scripts.formats.toml_files import write_toml
from tests.browser.page_help import expect
from tests.browser.test_page import open_file
from tests.browser.test_page_width import too_wide
from tests.support.data import make_folder, make_image

playwright = pytest.importorskip("playwright.sync_api")

MANY = 300
EVIL = "<img src=x onerror='window.evil=1'>"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    folder = root / "2_cat"
    make_folder(folder, [(128, 64) if number % 3 else (64, 64) for number in range(MANY - 2)], "cat, sofa")
    make_image(folder / f"evil{EVIL.replace('/', '')}.png", (64, 64))
    (folder / f"evil{EVIL.replace('/', '')}.txt").write_text(f"{EVIL}, <script>window.evil=1</script>")
    (folder / "broken.png").write_bytes(b"no image")
    (folder / "05.txt").unlink()
    (folder / "06.txt").write_text("")
    return root


@pytest.fixture
def dataset(page: Any, photos: Path) -> Any:
    """The page with the images of a form's field, all looked at."""
    sizes = {"resolution": "96,96", "enable_bucket": True, "min_bucket_reso": 64, "bucket_reso_steps": 32}
    values = {"train_data_dir": str(photos), "caption_extension": ".txt", "max_train_steps": 8, **sizes}
    write_toml(photos / "photos.toml", {"family": "sdxl", "method": "lora", **values})
    open_file(page, photos / "photos.toml")
    page.locator("#lora-train_data_dir a[href$='#see-images']").click()
    expect(page.locator(".dataset-status")).to_have_text(f"{MANY} images")
    return page


def selected(page: Any) -> list[str]:
    return [Path(path).name for path in page.evaluate("Studio.dataset.selection()")]


def test_the_grid_shows_what_training_reads(dataset: Any) -> None:
    cell = dataset.locator(".image-cell").first
    expect(cell).to_contain_text("00.png")
    expect(cell).to_contain_text("64x64 → 96x96 ×2")
    expect(cell.locator("img")).to_be_visible()
    assert dataset.locator(".image-cell").count() < MANY / 3
    expect(dataset.locator(".dataset-sum summary")).to_contain_text(
        f"{MANY - 1} images × 2 = {2 * (MANY - 1)} / batch 1"
    )
    assert dataset.evaluate("window.evil") is None
    dataset.evaluate("document.querySelector('.image-grid').scrollTop = 1e6")
    expect(dataset.locator(".image-cell").last).to_contain_text("broken.png")


def test_marks_words_tags_and_buckets_narrow_it_down(dataset: Any) -> None:
    status, marks = dataset.locator(".dataset-status"), dataset.locator(".chips")
    marks.get_by_role("button", name="no caption 1").click()
    expect(status).to_have_text(f"1 of {MANY} images")
    marks.get_by_role("button", name="empty caption 1").click()
    expect(status).to_have_text(f"2 of {MANY} images")
    for name in ("no caption 1", "empty caption 1"):
        marks.get_by_role("button", name=name).click()
    dataset.get_by_label("Tag", exact=True).fill("sofa")
    expect(status).to_have_text(f"{MANY - 4} of {MANY} images")
    dataset.get_by_label("Words in name or caption").fill("11 cat")
    expect(status).to_have_text(f"12 of {MANY} images")  # 11, 110 to 119 and 211
    for label in ("Tag", "Words in name or caption"):
        dataset.get_by_label(label, exact=True).fill("")
    dataset.locator(".dataset-sum summary").click()
    dataset.locator(".bucket-table").get_by_role("button", name="96 × 96").click()
    expect(status).to_have_text(f"101 of {MANY} images")
    dataset.locator(".bucket-table").get_by_role("button", name="96 × 96").click()


def test_the_keyboard_alone_moves_selects_and_enlarges(dataset: Any) -> None:
    press = dataset.keyboard.press
    dataset.locator(".image-grid").focus()
    press("Home")
    assert selected(dataset) == ["00.png"]
    press("ArrowRight")
    press("Shift+ArrowRight")
    assert selected(dataset) == ["01.png", "02.png"]
    press("Control+ArrowRight")
    press("Space")
    assert selected(dataset) == ["01.png", "02.png", "03.png"]
    press("End")
    active = dataset.locator(".image-grid").get_attribute("aria-activedescendant")
    expect(dataset.locator(f"#{active}")).to_be_visible()
    press("Control+a")
    assert len(selected(dataset)) == MANY
    press("Escape")
    assert selected(dataset) == []
    press("Home")
    press("Enter")
    expect(dataset.locator(".dataset-dialog[open]")).to_contain_text(f"1 of {MANY}")
    press("ArrowRight")
    expect(dataset.locator(".dataset-dialog[open]")).to_contain_text(f"2 of {MANY}")
    press("Escape")
    assert dataset.evaluate("document.activeElement.getAttribute('role')") == "listbox"


def test_a_step_and_every_width_are_shown(dataset: Any) -> None:
    dataset.get_by_role("button", name="What a step sees…").click()
    expect(dataset.locator(".step-samples figure img")).to_be_visible()
    expect(dataset.locator(".dataset-dialog[open]")).to_contain_text("Step 1 of")
    dataset.get_by_label("Next step").click()
    expect(dataset.locator(".dataset-dialog[open]")).to_contain_text("Step 2 of")
    assert too_wide(dataset) == set()
    dataset.keyboard.press("Escape")
    assert too_wide(dataset) == set()


def test_the_tab_leads_to_training_on_what_it_shows(dataset: Any, photos: Path) -> None:
    dataset.get_by_label("Folder or dataset file").fill(str(photos / "2_cat"))
    dataset.get_by_label("Folder or dataset file").press("Enter")
    expect(dataset.locator("[data-dataset]")).not_to_have_attribute("aria-busy", "true")
    dataset.wait_for_function(
        "folder => Studio.dataset.opened()?.train.train_data_dir === folder", arg=str(photos / "2_cat")
    )
    dataset.locator("#dataset-train").press("Enter")
    dataset.wait_for_function("document.activeElement.id === 'lora-start'")
    expect(dataset.locator("#lora-train_data_dir :is(input, textarea)")).to_have_value(str(photos / "2_cat"))
    assert dataset.evaluate("Drafts.value('lora', 'output_name')") == "cat"
    dataset.locator("#lora-reg_data_dir a[href$='#make-images']").press("Enter")
    dialog = dataset.locator("dialog.regularisation[open]")
    expect(dialog.locator("li").first).to_contain_text("cat · ")
    expect(dialog.locator("[data-action=start-regularisation]")).to_have_text(f"Generate {2 * (MANY - 1)} images")


def test_limits_of_the_marks_are_remembered(dataset: Any) -> None:
    dataset.get_by_text("Limits of the marks").click()
    limit = dataset.get_by_label("cropped: loses more than (%)")
    limit.fill("55")
    limit.press("Tab")
    assert dataset.evaluate("localStorage.getItem('dataset-limits')") == '{"cropped":55}'
    limit.fill("")
    limit.press("Tab")
    expect(limit).to_have_value("20")
    assert dataset.evaluate("localStorage.getItem('dataset-limits')") == "{}"
