"""Make images of the page for docs/: python -m tests.browser.docs_images FOLDER [NAME ...]

Everything that the page shows lies in FOLDER, whose path is seen, such as /home/mia/studio. Each image is of a training
of a miniature that has ended.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from sd_scripts.demo import make
from sd_scripts.formats.toml_files import read_toml, write_toml
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
    made = read_toml(make(folder / scene.family, scene.family))
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


def main(folder: Path, names: list[str]) -> None:
    """Write the images named, or all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    gui = Gui(folder)
    gui.start()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=QUIET)
        try:
            for name in names or SCENES:
                shoot(browser, gui, SCENES[name], folder, DOCS / f"{name}.png")
        finally:
            browser.close()
            gui.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
