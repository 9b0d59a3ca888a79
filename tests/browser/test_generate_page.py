"""The tab Generate in real Chromium: a form becomes images, and an image becomes the form again."""

from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import save_file

from sd_scripts.formats.images.image_parameters import text_chunks
from sd_scripts.formats.toml_files import read_toml
from sd_scripts.runs.store import RunStore
from tests.browser.page_help import TRAINING, Gui, expect
from tests.browser.test_page_width import too_wide
from tests.support.clips import make_clip
from tests.support.data import make_image

pytest.importorskip("playwright.sync_api")

FILES = ("pretrained_model_name_or_path", "clip_l", "t5xxl", "ae")
DROP = """(where, [bytes, name]) => {
  const data = new DataTransfer();
  data.items.add(new File([Uint8Array.from(bytes)], name));
  where.dispatchEvent(new DragEvent("drop", { bubbles: true, dataTransfer: data }));
}"""


def dropped(file: Path) -> tuple[list[int], str]:
    return list(file.read_bytes()), file.name


def test_a_form_becomes_images_and_a_dropped_image_the_form(
    page: Any, gui: Gui, kontext_demo: Path, tmp_path: Path
) -> None:
    page.locator("#generate-button").click()
    tab = page.locator("#generate")
    expect(tab.locator("#generate-go")).to_be_visible()
    family = tab.locator("select[aria-label='Model family']")
    expect(family).to_have_css("appearance", "auto")  # its arrow distinguishes it from a text field
    adapter = tmp_path / "mycat.safetensors"
    save_file({"weight": numpy.zeros(1)}, adapter, {"modelspec.trigger_phrase": "sks cat"})
    store = RunStore(gui.runs)
    run = store.add(tmp_path / "run", name="mycat", tab="lora", family="flux_kontext", state="finished")
    store.update(run.id, results=[adapter])
    make_image(tmp_path / "mycat.preview.png", (64, 64))
    store.close()
    family.select_option("flux_kontext")
    tab.get_by_role("button", name="My LoRAs…").click()
    own = page.locator("dialog[open]")
    expect(own.get_by_role("button", name="mycat")).to_contain_text("sks cat")
    expect(own.locator("img")).to_have_js_property("naturalWidth", 64)
    own.get_by_role("button", name="mycat").click()
    expect(own).to_be_hidden()
    expect(tab.locator(".adapter-file")).to_have_value(str(adapter))
    tab.locator("#generate-prompt textarea").fill("on a chair\na Sks cat\n# later")
    tab.get_by_role("button", name="Trigger words: sks cat").click()
    expect(tab.locator("#generate-prompt textarea")).to_have_value("sks cat, on a chair\na Sks cat\n# later")
    tab.locator(".adapter-file").fill("")
    tab.locator(".adapter-strength").click()
    expect(tab.locator(".adapter-words")).to_be_hidden()
    tab.get_by_label("Remove adapter").click()

    def field(name: str) -> Any:
        return tab.locator(f"#generate-{name} :is(input, textarea)")

    # all problems are reported together, each in a sentence
    field("prompt").fill("a red circle")
    tab.locator("#generate-go").click()
    expect(tab.locator(".message-error").first).to_contain_text("Base model (pretrained_model_name_or_path): not set")
    tab.locator(".message-error .field-link").first.click()
    expect(field("pretrained_model_name_or_path")).to_be_focused()

    settings = read_toml(kontext_demo)
    for name in FILES:
        field(name).fill(str(settings[name]))
    numbers = {"width": 64, "height": 64, "steps": 2, "images_per_prompt": 2, "batch_size": 2, "image_seed": 5}
    for name, value in numbers.items():
        field(name).fill(str(value))
    tab.locator("details", has_text="More").last.locator("summary").click()
    field("image_dir").fill(str(tmp_path / "images"))

    # control images: one chosen as a file, one dropped on their box
    control = make_image(tmp_path / "before.png", (80, 64))
    tab.locator("[aria-label='Upload control images']").set_input_files(control)
    rows = tab.locator(".control-file")
    expect(rows).to_have_count(1)
    tab.locator(".generate-controls").evaluate(DROP, dropped(control))
    expect(rows).to_have_count(2)
    expect(field("prompt")).to_have_value("a red circle")
    expect(tab.locator(".control-preview").first).to_be_visible()
    uploaded = rows.first.input_value()
    tab.locator("[aria-label='Remove control image']").last.click()
    tab.locator("#generate-go").click()
    expect(tab.locator(".request-doing")).to_contain_text("Done", timeout=TRAINING)
    expect(tab.locator(".generate-images .sample")).to_have_count(2)
    expect(tab.locator(".message-error")).to_have_count(0)
    assert too_wide(page) == set()

    field("prompt").fill("something else")
    field("steps").fill("9")
    tab.locator("[aria-label='Remove control image']").click()
    expect(rows).to_have_count(0)
    image = min((tmp_path / "images").glob("*.png"))
    tab.locator("[data-generate]").evaluate(DROP, dropped(image))
    expect(field("prompt")).to_have_value("a red circle")
    expect(field("steps")).to_have_value("2")
    expect(field("image_seed")).to_have_value("5")
    expect(rows).to_have_value(uploaded)

    tab.locator(".generate-images .sample").first.click()
    large = page.locator("dialog[open]")
    expect(large).to_contain_text("64 × 64 · 2 steps")
    expect(large).to_contain_text(f"From {Path(uploaded).name}")
    large.locator("[data-action=use-parameters]").click()
    expect(field("image_seed")).to_have_value("6")

    # values of two options compared
    field("images_per_prompt").fill("1")
    for option, values in (("steps", "1, 2"), ("image_seed", "5, x")):
        tab.locator("[data-action=add-sweep]").click()
        tab.get_by_label("Option to compare").last.select_option(option)
        tab.get_by_label("Values, separated by commas").last.fill(values)
    expect(tab.locator("[data-action=add-sweep]")).to_be_hidden()
    tab.locator("#generate-go").click()
    expect(tab.locator(".message-error")).to_contain_text("image_seed: 'x' is not a whole number")
    tab.get_by_label("Remove the comparison").last.click()
    tab.locator("#generate-go").click()
    expect(tab.locator(".generate-images .sample-label")).to_have_text(["grid", "steps 2", "steps 1"], timeout=TRAINING)
    tab.get_by_label("Remove the comparison").click()

    # a value with a comma is one value: the images are rated together
    tab.locator("[data-action=add-sweep]").click()
    tab.get_by_label("Option to compare").last.select_option("negative_prompt")
    tab.get_by_label("Values, separated by commas").last.fill('"blurry, dark", dull')
    tab.locator("#generate-go").click()
    names = ["grid", "negative_prompt dull", "negative_prompt blurry, dark", "grid", "steps 2", "steps 1"]
    expect(tab.locator(".generate-images .sample-label")).to_have_text(names, timeout=TRAINING)
    tab.locator("[data-action=rate]").click()
    rating = page.locator("dialog[open]")
    expect(rating.get_by_role("status")).to_have_text("Which is better? 1 of 1")
    page.keyboard.press("ArrowDown")
    expect(rating.locator("th[scope=row]")).to_have_text(["negative_prompt dull", "negative_prompt blurry, dark"])
    page.keyboard.press("Escape")
    tab.get_by_label("Remove the comparison").click()

    # a clip, and one that was cut off
    told = {"prompt": "猫 <b>moves</b>", "steps": 7, "scale": 1.0, "seed": 9, "width": 64, "height": 64, "frames": 3}
    clip = make_clip(tmp_path / "clips" / "CLIP.MP4", texts=text_chunks(told))
    tab.locator("[data-generate]").evaluate(DROP, dropped(clip))
    expect(field("prompt")).to_have_value(told["prompt"])
    expect(field("steps")).to_have_value("7")
    tab.locator("[data-generate]").evaluate(DROP, [list(clip.read_bytes())[:99], "cut.mp4"])
    expect(tab.locator(".message-error")).to_contain_text("contains no parameters")
    field("image_dir").fill(str(clip.parent))
    video = tab.locator(".generate-images video")
    expect(video).to_have_js_property("muted", True)
    expect(video).to_have_js_property("paused", True)  # for people who asked for less motion
    kind = "video => fetch(video.dataset.poster).then((sent) => sent.headers.get('content-type'))"
    assert video.evaluate(kind) == "image/jpeg"

    tab.locator("[data-action=free-model]").click()
    expect(tab.locator("[data-action=free-model]")).to_be_hidden()
