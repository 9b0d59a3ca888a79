"""Train a trained miniature in many ways, and count the generated images that show what was to be learned.

python -m benchmarks.learning [--rows NAME ...] [--family flux] [--folder FOLDER]

Each row is the demo's training with different options: on images of a word that is new to the base model, and images of
known shapes. Images are generated of 20 scenes with the new word and 10 without; `shapes.recognize` decides what each
shows. *Before* is the share of images of the base model that show the new word, *after* the trained model's share, and
*kept* the share of images without the word that show their prompt.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image

from sd_scripts import demo
from sd_scripts.families.cards.registry import card_of
from sd_scripts.formats.toml_files import read_toml, write_toml
from sd_scripts.options.generating.generate import GENERATE
from sd_scripts.options.model import MODEL
from sd_scripts.runs.folder import RunFolder
from sd_scripts.settings.catalog import script_for, script_path
from sd_scripts.testing import trained
from sd_scripts.testing.shapes import SIDE, Scene, random_scene, recognize, zorb_scene

T5_LENGTH = card_of("flux").page.demo["t5xxl_max_token_length"]
LYCORIS = {"network_module": "lycoris.kohya"}
ROWS: dict[str, dict[str, Any]] = {
    "lora": {},
    "compiled": {"compile": True},
    "lokr": {**LYCORIS, "network_args": ["algo=lokr", "factor=4"], "learning_rate": 1e-2},
    "loha": {**LYCORIS, "network_args": ["algo=loha"], "learning_rate": 5e-3},
    "dora": {**LYCORIS, "network_args": ["algo=lora", "dora_wd=True"]},
    "int8": {"quantize_base": "int8"},
    "nf4": {"quantize_base": "nf4"},
    "bf16": {"mixed_precision": "bf16"},
    "without_prior": {"reg_data_dir": ""},
    "full": {},
}
"""Name of a row -> options that differ from the demo's; `full` trains the whole model."""
QUIET: dict[str, Any] = {"compile": False, "sample_at_first": False, "sample_every_n_steps": 0, "sample_prompts": ""}
FLAGS = {"sdxl": ("--scale=3", "--steps=24"), "flux": (f"--t5xxl_max_token_length={T5_LENGTH}", "--steps=16")}
"""How images are generated."""


def scenes(seed: int = 9) -> tuple[list[Scene], list[Scene]]:
    """Return scenes with the new word, and scenes that the base model knows."""
    random = Random(seed)
    return [zorb_scene(random) for _ in range(20)], [random_scene(random) for _ in range(10)]


def success(
    family: str, files: Mapping[str, Path], wanted: Sequence[Scene], folder: Path, flags: Sequence[str] = ()
) -> dict[str, float]:
    """Generate an image of each scene; return the shares of images with its shape, colour, background, and all three.

    `folder` gets the images, and `sheet.png` with all of them.
    """
    prompts = folder / "prompts.txt"
    folder.mkdir(parents=True, exist_ok=True)
    lines = (f"{scene.caption()} --d {seed}\n" for seed, scene in enumerate(wanted))
    prompts.write_text("".join(lines), encoding="utf-8")
    images = folder / "images"
    shutil.rmtree(images, ignore_errors=True)
    options = {"prompt_file": prompts, "width": SIDE, "height": SIDE, "image_dir": images, "run_dir": folder / "run"}
    arguments = [f"--{name}={value}" for name, value in {**files, **options, "dtype": "fp32"}.items()]
    script = import_module(f"sd_scripts.{Path(script_for(family, GENERATE).file).stem}")
    with redirect_stdout(None):
        assert script.main([*arguments, *FLAGS[family], *flags]) == 0
    made = [Image.open(path) for path in sorted(images.glob("*.png"), key=lambda path: path.stat().st_mtime_ns)]
    counts: Counter[str] = Counter()
    for image, scene in zip(made, wanted, strict=True):
        seen = recognize(image)
        counts["shape"] += seen.shape == scene.shape
        counts["colour"] += seen.colour == scene.colour
        counts["background"] += seen.background == scene.background
        counts["all"] += seen.shows(scene)
    sheet = Image.new("RGB", (SIDE * 10, SIDE * ((len(made) + 9) // 10)))
    for number, image in enumerate(made):
        sheet.paste(image, (number % 10 * SIDE, number // 10 * SIDE))
    sheet.save(folder / "sheet.png")
    return {name: count / len(wanted) for name, count in sorted(counts.items())}


def train(family: str, name: str, folder: Path) -> tuple[dict[str, Path], tuple[str, ...], float, float]:
    """Train a row; return the model's files, the flags that apply the adapter, the last loss and the seconds."""
    method = "full" if name == "full" else "lora"
    config = demo.make(folder, family, method)
    values = {**read_toml(config), **QUIET, **ROWS[name], "output_name": name, "run_dir": str(folder / "run")}
    write_toml(config, {option: value for option, value in values.items() if value != ""})
    began = time.perf_counter()
    command = [sys.executable, str(script_path(script_for(family, method))), "--config_file", str(config)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    losses = [event["loss"] for event in RunFolder(folder / "run").events() if event["kind"] == "step"]
    files = {option: folder / trained.file_name(family, option) for option in trained.options_of(family)}
    saved = folder / "output" / f"{name}.safetensors"
    flags: tuple[str, ...] = (f"--lora_weights={saved}",)
    if method == "full":  # in place of the base model, next to its tokenizers
        flags = ()
        shutil.copy(saved, files[MODEL])
    last = losses[-50:]
    return files, flags, sum(last) / len(last), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="flux", choices=[name for name in demo.FAMILIES if trained.has(name)])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--folder", type=Path, help="keep models and images here")
    arguments = parser.parse_args()
    family = arguments.family
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        new, known = scenes()
        base = trained.copy_model(family, folder / "base")
        before = success(family, base, new, folder / "base" / "new")["all"]
        print(f"{os.cpu_count()} CPU threads; the base model shows the new word in {before:.0%} of images", flush=True)
        print("| training | loss | before | after | kept | seconds |\n|---|---|---|---|---|---|", flush=True)
        for name in arguments.rows:
            files, flags, loss, seconds = train(family, name, folder / name)
            after = success(family, files, new, folder / name / "new", flags)["all"]
            kept = success(family, files, known, folder / name / "known", flags)["all"]
            print(f"| {name} | {loss:.4f} | {before:.0%} | {after:.0%} | {kept:.0%} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
