"""Make images of the page for docs/: python -m tests.browser.docs_images FOLDER [NAME ...]

Everything that the page shows lies in FOLDER, whose path is seen, such as /home/mia/studio. Each image is of a training
of a miniature that has ended; `demo` is the result of the demo with FLUX.1.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw
from playwright.sync_api import sync_playwright

from sd_scripts import demo
from sd_scripts.formats.toml_files import read_toml, write_toml
from sd_scripts.tools.comparison.grid_image import load_font, wrapped
from tests.browser.page_help import CHROMIUM, QUIET, TRAINING, Gui, ask_for, expect, settled

DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The page after a training."""

    family: str
    top: str = ""
    """The element that is scrolled to the top."""
    narrow: bool = False
    """Make a second image, NAME-800, of the page on a narrow screen."""


SCENES = {
    "page": Scene(family="sdxl", narrow=True),
    "page-flux": Scene(family="flux"),
    "kontext": Scene(family="flux_kontext", top="#lora-panel-folders-and-dataset"),
    "qwen_image": Scene(family="qwen_image"),
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


def shoot(browser: Any, gui: Gui, scene: Scene, folder: Path, image: Path) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 1000}, reduced_motion="reduce")
    page.goto(gui.address)
    expect(page.locator("#lora-start")).to_be_visible()
    settled(page, "#lora")
    path = settings(scene, folder)
    ask_for(page, path)
    expect(page.locator("#lora-message")).to_contain_text(f"Opened {path.name}")
    page.locator("#lora-start").click()
    run = page.locator("#lora-run")
    expect(run.locator(".run-name")).to_have_text(path.stem)
    expect(run.locator(".badge")).to_have_text("Finished", timeout=TRAINING)
    page.mouse.move(0, 0)
    if scene.top:
        page.locator(scene.top).evaluate("(part) => scrollTo(0, part.getBoundingClientRect().top + scrollY - 12)")
    save(page, image)
    if scene.narrow:
        page.set_viewport_size({"width": 800, "height": 1200})
        save(page, image.with_stem(f"{image.stem}-800"))
    page.close()


def save(page: Any, image: Path) -> None:
    page.wait_for_timeout(1500)  # curves and thumbnails arrive
    page.screenshot(path=image)
    Image.open(image).quantize().save(image, optimize=True)  # a third of the bytes


def before_and_after(folder: Path, image: Path) -> None:
    """Run the demo with FLUX.1, and write its images side by side: a column for each prompt, before and after."""
    assert demo.main(["flux", "--folder", str(folder)]) == 0
    (result,) = folder.glob("output/runs/*/comparison/comparison.json")
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
    if not names or "demo" in names:
        before_and_after(folder / "demo", DOCS / "demo.png")
    names = [name for name in names or SCENES if name != "demo"]
    if not names:
        return
    gui = Gui(folder)
    gui.start()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=QUIET)
        try:
            for name in names:
                shoot(browser, gui, SCENES[name], folder, DOCS / f"{name}.png")
        finally:
            browser.close()
            gui.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
