"""Make images of the page for docs/: python -m tests.browser.docs_images FOLDER [NAME ...]

Everything that the page shows lies in FOLDER, whose path is seen, such as /home/mia/studio. Most images are of the
demo's run, in FOLDER/demo, which is made if it is not there; those in `SCENES` are of a training of an untrained
miniature.
"""

import json
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw
from playwright.sync_api import sync_playwright

from sd_scripts import demo
from sd_scripts.formats.toml_files import read_toml, write_toml
from sd_scripts.generating.labelled_grid import load_font, wrapped
from sd_scripts.runs.comparison import FOLDER as COMPARISON
from sd_scripts.runs.comparison import RESULT
from sd_scripts.runs.store import RunStore
from sd_scripts.testing import trained
from sd_scripts.testing.demo_images import FOLDER, write_images
from tests.browser.page_help import (
    ALL_SETTINGS,
    CHROMIUM,
    QUIET,
    TRAINING,
    Gui,
    ask_for,
    expect,
    field,
    settled,
    unfold,
)
from tests.support.captioning_models.tagging import write_tagger

DOCS = Path(__file__).parents[2] / "docs"
WIDE, NARROW = {"width": 1400, "height": 1000}, {"width": 800, "height": 1200}


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The page after a training of an untrained miniature."""

    family: str
    top: str
    """The element that is scrolled to the top."""


SCENES = {
    "kontext": Scene(family="flux_kontext", top="#lora-panel-folders-and-dataset"),
    "qwen_image": Scene(family="qwen_image", top="#lora"),
}
"""File name in docs/, without .png -> its content."""


def settings(scene: Scene, folder: Path) -> Path:
    """Write the settings of a demo whose model and images lie in `folder`; return their file."""
    made = read_toml(demo.make(folder / scene.family, scene.family))
    name = f"shapes_{scene.family}"
    path = folder / f"{name}.toml"
    small = {"compile": False, "num_cpu_threads_per_process": 1, "output_dir": str(folder / "output")}
    write_toml(path, {**made, **small, "output_name": name, "overwrite": True})
    return path


def open_page(browser: Any, gui: Gui) -> Any:
    page = browser.new_page(viewport=WIDE, reduced_motion="reduce")
    page.add_init_script(ALL_SETTINGS)
    page.goto(gui.address)
    expect(page.locator("#lora-start")).to_be_visible()
    settled(page, "#lora")
    return page


def shoot(page: Any, scene: Scene, folder: Path, image: Path) -> None:
    path = settings(scene, folder)
    ask_for(page, path)
    expect(page.locator("#lora-message")).to_contain_text(f"Opened {path.name}")
    page.locator("#lora-start").click()
    run = page.locator("#lora-run")
    expect(run.locator(".run-name")).to_have_text(path.stem)
    expect(run.locator(".badge")).to_have_text("Finished", timeout=TRAINING)
    page.mouse.move(0, 0)
    page.locator(scene.top).evaluate("(part) => scrollTo(0, part.getBoundingClientRect().top + scrollY - 12)")
    save(page, image)


def save_two(page: Any, wide: str, narrow: str) -> None:
    """Make an image of a wide and one of a narrow page."""
    page.mouse.move(0, 0)
    save(page, DOCS / f"{wide}.png")
    page.set_viewport_size(NARROW)
    save(page, DOCS / f"{narrow}.png")


def training_tab(page: Any, folder: Path) -> None:
    ask_for(page, folder / "demo" / "demo.toml")
    expect(page.locator("#lora-message")).to_contain_text("Opened demo.toml")
    expect(page.locator("#lora-run .before-after")).to_be_visible()
    expect(page.locator("#lora-plan .plan summary")).to_be_visible()
    save_two(page, "page", "page-800")


def dataset_tab(page: Any, folder: Path) -> None:
    ask_for(page, folder / "demo" / "demo.toml")
    expect(page.locator("#lora-message")).to_contain_text("Opened demo.toml")
    page.locator("#lora-train_data_dir a[href$='#see-images']").click()
    expect(page.locator(".dataset-status")).to_have_text(re.compile(r"^\d+ images$"))
    page.locator(".image-cell").nth(5).click()
    page.evaluate("scrollTo(0, 0)")
    page.mouse.move(0, 0)
    save(page, DOCS / "dataset.png")


def mask_and_crop(page: Any, folder: Path) -> None:
    """Paint a mask with the keys, and show the frame of a square bucket."""
    shutil.rmtree(folder / "painted", ignore_errors=True)  # masks of an earlier call
    images = write_images(folder / "painted")
    page.locator("#dataset-button").click()
    page.get_by_label("Folder or dataset file").fill(str(images))
    page.get_by_label("Folder or dataset file").press("Enter")
    expect(page.locator(".dataset-status")).to_have_text(re.compile(r"^\d+ images$"))
    page.locator(".image-grid").focus()
    for key in ("Home", "m"):
        page.keyboard.press(key)
    dialog = page.locator("dialog[open]")
    expect(dialog).to_contain_text("does not exist yet")
    for key in ("f", "x", *["]"] * 7, "Enter"):  # nothing is trained but the middle
        page.keyboard.press(key)
    save(page, DOCS / "dataset-mask.png")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.locator(".image-grid").focus()
    page.keyboard.press("c")
    expect(dialog.get_by_label("Shape of the frame").locator("option").nth(1)).to_be_attached()
    dialog.get_by_label("Shape of the frame").select_option(index=1)
    expect(dialog.locator(".cut-facts")).to_contain_text("bucket")
    save(page, DOCS / "dataset-crop.png")


def runs_tab(page: Any, folder: Path) -> None:
    page.locator("#runs-button").click()
    expect(page.locator("#runs-run .before-after")).to_be_visible()
    save_two(page, "runs-1400", "runs-800")


def checkpoints(page: Any, folder: Path) -> None:
    page.locator("#runs-button").click()
    page.locator("#runs-run .run-actions [data-action=checkpoints]").click()
    expect(page.locator(".checkpoint-grid .sample")).to_have_count(2 * len(trained.PROMPTS))
    save_two(page, "compare-checkpoints", "compare-checkpoints-800")


def comparison(page: Any, folder: Path) -> None:
    """Show the demo's run next to one that was shorter and had a lower learning rate."""
    RunStore(Gui(folder).runs).find(low_rate(folder).parent)
    page.locator("#runs-button").click()
    boxes = page.locator(".history tbody input")
    expect(boxes).to_have_count(2)
    for box in boxes.all():
        box.check()
    page.locator("[data-action=compare]").click()
    expect(page.locator(".comparison table")).to_be_visible()
    page.mouse.move(0, 0)
    save(page, DOCS / "compare.png")


def low_rate(folder: Path) -> Path:
    """Return the LoRA of a training like the demo's with 300 steps and a lower learning rate, made if it is missing."""
    made, name = folder / "low_rate", "low_rate"
    saved = made / "output" / f"{name}.safetensors"
    if not saved.exists():
        own = {"output_name": name, "run_dir": saved.parent / "runs" / name, "learning_rate": 5e-4}
        flags = [f"--{option}={value}" for option, value in {**own, "max_train_steps": 300}.items()]
        assert demo.main(["--folder", str(made), *flags]) == 0
    return saved


def lora_tools(page: Any, folder: Path) -> None:
    """Merge two LoRAs, and inspect the demo's."""
    loras = folder / "loras"
    loras.mkdir(exist_ok=True)
    files = [loras / "zorb.safetensors", loras / "low_rate.safetensors"]
    for made, file in zip((folder / "demo" / "output" / "demo_lora.safetensors", low_rate(folder)), files, strict=True):
        shutil.copy(made, file)
    merged = loras / "zorb-merged.safetensors"
    merged.unlink(missing_ok=True)
    page.locator("#loratools-button").click()
    tools = page.locator("#lora-tools .lora-tools")
    tools.locator("[data-tool=merge-svd]").click()
    for number, file in enumerate(files):
        if number:
            tools.get_by_role("button", name="Add LoRA").click()
        tools.get_by_label(f"LoRA {number + 1}", exact=True).fill(str(file))
        expect(tools.locator("[data-hint=models]").nth(number)).to_contain_text("FLUX.1 LoRA")
    tools.get_by_label("Block weights", exact=True).check()
    tools.get_by_label("Block weights of LoRA 2").fill("S=0.5")
    page.mouse.move(0, 0)
    save(page, DOCS / "lora-merge.png")
    tools.locator("[data-tool=inspect]").click()
    tools.locator("#tool-model").fill(str(files[0]))
    expect(tools.locator("[data-hint=model]")).to_contain_text("FLUX.1 LoRA")
    start = tools.locator("[data-action=start-tool]")
    start.click()
    expect(start).to_be_enabled()  # it was answered, or, on a busy machine, not in time
    if tools.locator(".message-error").count():
        start.click()
    expect(tools.locator("svg[aria-label='Singular values'] polyline")).to_have_count(1)
    save(page, DOCS / "lora-tools.png")


def measured(page: Any, folder: Path) -> None:
    """Show the plan of a training like the demo's, and what measuring it shows."""
    ask_for(page, folder / "demo" / "demo.toml")
    expect(page.locator("#lora-message")).to_contain_text("Opened demo.toml")
    plan = page.locator("#lora-plan")
    expect(plan.locator(".plan summary")).to_be_visible()
    plan.locator("details.plan").evaluate("(details) => (details.open = true)")
    page.get_by_role("button", name="Measure on this machine").click()
    expect(plan.locator("[data-measured] tr", has_text="default")).to_contain_text("with cache", timeout=TRAINING)
    page.mouse.move(0, 0)
    save(plan, DOCS / "measure.png")


def generate_tab(page: Any, folder: Path) -> None:
    shutil.rmtree(folder / "outputs", ignore_errors=True)  # images of an earlier call
    page.locator("#runs-button").click()
    page.locator("#runs-run [data-action=try]").click()
    tab = page.locator("#generate")
    settled(page, "#generate")
    prompts = [prompt.partition(" --")[0] for prompt in trained.PROMPTS]
    values = {"prompt": "\n".join(prompts), "width": 128, "height": 128, "steps": 16, "image_seed": 2}
    for name, value in values.items():
        tab.locator(f"#generate-{name} :is(input, textarea)").fill(str(value))
    tab.locator("#generate-go").click()
    expect(tab.locator(".request-doing")).to_contain_text("Done", timeout=TRAINING)
    expect(tab.locator(".generate-images .sample")).to_have_count(len(prompts))
    # of a request that was answered late, on a busy machine
    tab.locator(".message-error").evaluate_all("all => all.forEach((message) => message.remove())")
    save_two(page, "generate", "generate-800")


def captions_tab(page: Any, folder: Path) -> None:
    """Show images that a miniature tagger was tried on; one has a caption."""
    images = write_images(folder / "images") / FOLDER
    for number, caption in enumerate(sorted(images.glob("*.txt"))):
        if number != 1:
            caption.unlink()
    tags = (("blue", 0), ("green", 0), ("red", 0), ("simple_background", 0), ("sensitive", 9), ("general", 9))
    tagger = write_tagger(folder / "tagger", tags)
    page.locator("#captions-button").click()
    page.locator("#caption-train_data_dir").fill(str(images))
    page.locator("#caption-model").fill(str(tagger))
    page.locator("#caption-trigger").fill("shps")
    page.locator("#caption-thresh").fill("0.2")
    expect(page.locator("[data-hint=train_data_dir]")).to_contain_text("1 with a .txt file")
    page.locator("[data-action=try-captions]").click()
    expect(page.locator(".job-changes tbody tr")).to_have_count(5)
    save(page, DOCS / "captions.png")


def image_tools_tab(page: Any, folder: Path) -> None:
    """Show masks by colour that were tried on five images."""
    images = write_images(folder / "photos")
    page.locator("#imagetools-button").click()
    page.locator(".images [data-method=mask]").click()
    page.locator("#images-train_data_dir").fill(str(images))
    page.locator("#images-mask_from").select_option("colour")
    with Image.open(images / FOLDER / "blue_triangle_on_a_black_background.png") as image:
        red, green, blue = image.convert("RGB").getpixel((1, 1))  # type: ignore[misc]
    page.locator("#images-colour").fill(f"#{red:02x}{green:02x}{blue:02x}")
    page.locator("#images-feather").fill("0.01")
    page.locator("[data-action=try-images]").click()
    expect(page.locator(".images .job-changes tbody tr")).to_have_count(5)
    save(page, DOCS / "image-tools.png")


def dataset_editing(page: Any, folder: Path) -> None:
    """Show what replacing words in all captions would change."""
    shutil.rmtree(folder / "edited", ignore_errors=True)  # an earlier call's
    images = write_images(folder / "edited")
    page.wait_for_function(
        "() => { try { return Plans.form('lora'); } catch { return false; } }"
    )  # the form has values
    page.locator("#dataset-button").click()
    page.get_by_label("Folder or dataset file").fill(str(images))
    page.get_by_label("Folder or dataset file").press("Enter")
    expect(page.locator(".dataset-status")).to_have_text(re.compile(r"^\d+ images$"))
    page.locator(".image-cell").nth(2).click()
    page.locator(".image-grid").focus()
    page.keyboard.press("Control+a")
    side = page.locator("#dataset-side")
    side.get_by_label("Find", exact=True).fill("on a")
    side.get_by_label("Replace with").fill("against a")
    page.keyboard.press("Enter")
    expect(side.locator(".bulk-preview ins")).to_have_count(12)
    side.locator(".bulk-form").evaluate("(part) => part.scrollIntoView()")  # the column scrolls by itself
    page.mouse.move(0, 0)
    save(page, DOCS / "dataset-editing.png")


def embedding_tab(page: Any, folder: Path) -> None:
    """Show the panel Textual inversion, without the rest of the page."""
    name = "textual_inversion"
    page.locator(f"#{name}-button").click()
    settled(page, f"#{name}")
    unfold(page, "textual-inversion", tab=name)
    for option, value in {"token_string": "mycat", "init_word": "cat", "num_vectors_per_token": "4"}.items():
        field(page, option, name).fill(value)
    page.mouse.move(0, 0)
    save(page.locator(f"#{name}-panel-textual-inversion"), DOCS / "embedding.png")


def compile_settings(page: Any, folder: Path) -> None:
    unfold(page, "advanced-training", "torch-compile-settings")
    page.locator("#lora-compile-switch input").check()
    expect(page.locator("#lora-compile_mode")).to_be_visible()
    panel = page.locator("#lora-panel-torch-compile-settings")
    panel.evaluate("(part) => scrollTo(0, part.getBoundingClientRect().top + scrollY - 12)")
    page.mouse.move(0, 0)
    save(page, DOCS / "page-compile.png")


WITHOUT_DEMO: dict[str, Callable[[Any, Path], None]] = {
    "captions": captions_tab,
    "image-tools": image_tools_tab,
    "dataset-mask": mask_and_crop,
    "dataset-editing": dataset_editing,
    "embedding": embedding_tab,
    "page-compile": compile_settings,
}
OF_DEMO: dict[str, Callable[[Any, Path], None]] = {
    "page": training_tab,
    "dataset": dataset_tab,
    "runs": runs_tab,
    "compare-checkpoints": checkpoints,
    "generate": generate_tab,
    "measure": measured,
    "lora-tools": lora_tools,
    "compare": comparison,
}
"""Begin of the file names -> what makes the images, on a page of their own."""


def save(shown: Any, image: Path) -> None:
    """Make an image of the page or of a part of it."""
    time.sleep(1.5)  # curves and thumbnails arrive
    shown.screenshot(path=image)
    Image.open(image).quantize().save(image, optimize=True)  # a third of the bytes


def results(folder: Path) -> list[Path]:
    """Return the files of comparisons of the demo's runs."""
    return sorted(folder.glob(f"demo/output/runs/*/{COMPARISON}/{RESULT}"))


def before_and_after(folder: Path, image: Path) -> None:
    """Write the demo's images side by side: a column for each prompt, before and after."""
    result = results(folder)[-1]
    comparison = json.loads(result.read_text(encoding="utf-8"))
    side, left, top, font = 200, 70, 64, load_font()
    picture = Image.new("RGB", (left + len(comparison["prompts"]) * (side + 8), top + 2 * (side + 8)), "#ffffff")
    pen = ImageDraw.Draw(picture)
    for row, word in enumerate(("before", "after")):
        pen.text((8, top + row * (side + 8) + side // 2), word, "#111827", font)
    for column, prompt in enumerate(comparison["prompts"]):
        words = "\n".join(wrapped(prompt["prompt"], side, font))
        pen.multiline_text((left + column * (side + 8), 8), words, "#111827", font)
    for cell in comparison["cells"]:
        drawn = Image.open(result.with_name(cell["image"])).resize((side, side), Image.Resampling.LANCZOS)
        row = comparison["strengths"].index(0.0) != cell["strength"]
        picture.paste(drawn, (left + cell["prompt"] * (side + 8), top + row * (side + 8)))
    picture.save(image, optimize=True)


def main(folder: Path, names: list[str]) -> None:
    """Write the images named, or all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    known = ["demo", *OF_DEMO, *WITHOUT_DEMO, *SCENES]
    if unknown := {*names} - {*known}:
        sys.exit(f"No images are called {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
    names = names or known
    if not {*names} <= {*SCENES, *WITHOUT_DEMO} and not results(folder):
        assert demo.main(["--folder", str(folder / "demo")]) == 0
    if "demo" in names:
        before_and_after(folder, DOCS / "demo.png")
    gui = Gui(folder)
    gui.start()
    try:
        RunStore(gui.runs).find(folder / "demo" / "output")
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=QUIET)
            for name in names:
                page = open_page(browser, gui)
                if name in OF_DEMO:
                    OF_DEMO[name](page, folder)
                elif name in WITHOUT_DEMO:
                    WITHOUT_DEMO[name](page, folder)
                elif name in SCENES:
                    shoot(page, SCENES[name], folder, DOCS / f"{name}.png")
                page.close()
            browser.close()
    finally:
        gui.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
