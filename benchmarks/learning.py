"""Train a trained miniature in many ways, and count the generated images that show what was to be learned.

python -m benchmarks.learning [--rows NAME ...] [--short] [--family flux] [--seed 1] [--folder FOLDER]

Each row is the demo's training with different options: on images of a word that is new to the base model, and images of
known shapes. Images are generated of 20 scenes with the new word and 10 without; `shapes_seen.recognize` decides what
each shows. *Before* is the share of images of the base model that show the new word, *after* the trained model's share,
and *kept* the share of images without the word that show their prompt. Images with a trained embedding are samples of
its run. `--short` trains 300 steps without images of known shapes, in a third of the time; the base model's knowledge
is then lost, so *kept* is left out.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import torch
from PIL import Image, ImageDraw

from benchmarks.shapes_seen import recognize
from sd_scripts import demo
from sd_scripts.families.cards.registry import card_of
from sd_scripts.formats.toml_files import read_toml, write_toml
from sd_scripts.options.generating.generate import GENERATE
from sd_scripts.options.model import MODEL
from sd_scripts.runs.folder import RunFolder
from sd_scripts.settings.catalog import script_for, script_path
from sd_scripts.testing import trained
from sd_scripts.testing.shapes import COLOURS, SIDE, ZORB, Scene, random_scene, zorb_scene

T5_LENGTH = card_of("flux").page.demo["t5xxl_max_token_length"]
LYCORIS = {"network_module": "lycoris.kohya"}
EMBEDDING: dict[str, Any] = {
    **{"token_string": ZORB, "init_word": "circle", "num_vectors_per_token": 2, "learning_rate": 1e-2},
    **{"cache_text_encoder_outputs": False, "fused_backward_pass": False, "reg_data_dir": ""},
}
ROWS: dict[str, dict[str, Any]] = {
    "lora": {},
    "compiled": {"compile": True},
    "lokr": {**LYCORIS, "network_args": ["algo=lokr", "factor=2", "full_matrix=True"], "learning_rate": 5e-3},
    "loha": {**LYCORIS, "network_args": ["algo=loha"], "learning_rate": 1.5e-3},
    "dora": {**LYCORIS, "network_args": ["algo=lora", "dora_wd=True"]},
    "int8": {"quantize_base": "int8"},
    "nf4": {"quantize_base": "nf4"},
    "bf16": {"mixed_precision": "bf16"},
    "fp16": {"mixed_precision": "fp16"},
    "adamw8bit": {"optimizer_type": "AdamW8bit"},
    "without_prior": {"reg_data_dir": ""},
    "masked": {"masked_loss": True},
    "unmasked": {},
    "high_noise": {"highnoise_resolution": "96"},
    "full": {},
    "embedding": EMBEDDING,
    "known_shape_embedding": EMBEDDING,
}
"""Name of a row -> options that differ from the demo's; `full` trains the whole model. The images of `masked` and
`unmasked` have a watermark, which `masked` has masks for. `high_noise` is for families with that option, `fp16` for a
GPU. `embedding` is textual inversion, and `known_shape_embedding` the same on images of `KNOWN`, which the base model
can generate."""
KNOWN: dict[str, Any] = {"noun": "ring", "colour": "teal"}
"""What the new word means in `known_shape_embedding`."""
WATERMARK, MASKED = 24, 32
"""Pixels of the watermark in the upper left corner, and of the corner that is not trained: no shape reaches it."""
SHORT: dict[str, Any] = {"reg_data_dir": "", "max_train_steps": 300}
QUIET: dict[str, Any] = {"compile": False, "sample_at_first": False, "sample_every_n_steps": 0, "sample_prompts": ""}
FLAGS = {"sdxl": ("--scale=2", "--steps=24"), "flux": (f"--t5xxl_max_token_length={T5_LENGTH}", "--steps=16")}
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
    return shares(images_in(folder), wanted, folder)


def images_in(folder: Path) -> list[Path]:
    """Return the images that `success` generated there, in the order of the prompts."""
    return sorted((folder / "images").glob("*.png"), key=lambda path: path.stat().st_mtime_ns)


def shares(images: Sequence[Path], wanted: Sequence[Scene], folder: Path) -> dict[str, float]:
    """Return the shares of images with the scene's shape, colour, background, and all three; `folder` gets `sheet.png`
    with all images."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [Image.open(path) for path in images]
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


def add_watermark(images: Path, masks: Path) -> None:
    """Draw a blue square into the upper left corner of each image; fill `masks` with masks that leave it out."""
    masks.mkdir(parents=True, exist_ok=True)
    for path in images.rglob("*.png"):
        image = Image.open(path).convert("RGB")
        ImageDraw.Draw(image).rectangle((0, 0, WATERMARK - 1, WATERMARK - 1), fill=COLOURS["blue"])
        image.save(path, compress_level=1)
        mask = Image.new("L", image.size, 255)
        mask.paste(0, (0, 0, MASKED, MASKED))
        mask.save(masks / path.name)


def draw_known_shape(images: Path) -> None:
    """Draw what `KNOWN` means by the new word into the demo's images, whose captions stay."""
    random = Random(trained.SEED)
    scenes = [replace(zorb_scene(random), **KNOWN) for _ in range(trained.IMAGES)]
    for path, scene in zip(sorted(images.rglob("*.png")), scenes, strict=True):
        scene.draw(random).save(path, compress_level=1)


def write_prompts(family: str, path: Path) -> None:
    """Write the prompts of samples that show every scene, in their order."""
    new, known = scenes()
    size = f"--w {SIDE} --h {SIDE} {card_of(family).page.demo_prompts}"
    lines = (f"{scene.caption()} {size} --d {seed}\n" for part in (new, known) for seed, scene in enumerate(part))
    path.write_text("".join(lines), encoding="utf-8")


def options_of(family: str, name: str, folder: Path, short: bool) -> dict[str, Any]:
    """Return the options of a row beyond the demo's in `folder`, whose images get the row's watermark or shape."""
    options = {**QUIET, **ROWS[name], **(SHORT if short else {}), "output_name": name, "run_dir": str(folder / "run")}
    if name == "known_shape_embedding":
        draw_known_shape(folder / "images")
    if method_of(name) == "textual_inversion":
        write_prompts(family, folder / trained.PROMPT_FILE)
        last = options.get("max_train_steps", trained.OPTIONS["max_train_steps"])
        options |= {"sample_prompts": str(folder / trained.PROMPT_FILE), "sample_every_n_steps": last}
    if name in ("masked", "unmasked"):
        add_watermark(folder / "images", folder / "masks")
        if name == "masked":
            options["conditioning_data_dir"] = str(folder / "masks")
    return options


@dataclass(frozen=True, kw_only=True)
class TrainedRow:
    """The result of a training."""

    files: dict[str, Path]
    """The model's files by option."""
    flags: tuple[str, ...]
    """Flags of generating that apply the adapter."""
    loss: float
    """Mean of the last 50 steps."""
    seconds: float
    """CPU time."""
    samples: tuple[Path, ...]
    """Images of all scenes after the last step, if the run made them."""


def method_of(name: str) -> str:
    """Return the method that trains a row."""
    return {"full": "full", "embedding": "textual_inversion", "known_shape_embedding": "textual_inversion"}.get(
        name, "lora"
    )


def train(family: str, name: str, folder: Path, *, short: bool = False, seed: int = 1) -> TrainedRow:
    """Train a row in a folder of its own."""
    method = method_of(name)
    config = demo.make(folder, family, "lora" if method == "lora" else "full")
    values = {**read_toml(config), **options_of(family, name, folder, short), "seed": seed}
    write_toml(config, {option: value for option, value in values.items() if value != ""})
    command = [sys.executable, str(script_path(script_for(family, method))), "--config_file", str(config)]
    seconds = run_quietly(command, folder / "train.log")
    events = list(RunFolder(folder / "run").events())
    losses = [event["loss"] for event in events if event["kind"] == "step"]
    samples = tuple(Path(event["path"]) for event in events if event["kind"] == "sample")
    files = {option: folder / trained.file_name(family, option) for option in trained.options_of(family)}
    saved = folder / "output" / f"{name}.safetensors"
    flags: tuple[str, ...] = (f"--lora_weights={saved}",)
    if method != "lora":
        flags = ()
    if method == "full":  # in place of the base model, next to its tokenizers
        shutil.copy(saved, files[MODEL])
    last = losses[-50:]
    return TrainedRow(files=files, flags=flags, loss=sum(last) / len(last), seconds=seconds, samples=samples)


def meant_by(name: str, new: Sequence[Scene]) -> Sequence[Scene]:
    """Return the scenes that a row teaches, of prompts with the new word."""
    return [replace(scene, **KNOWN) for scene in new] if name == "known_shape_embedding" else new


def measured(family: str, name: str, row: TrainedRow, folder: Path) -> tuple[float, float]:
    """Return the share of images that show the new word, and of those without the word that show their prompt."""
    new, known = scenes()
    if row.samples:
        after = shares(row.samples[: len(new)], meant_by(name, new), folder / "new")
        kept = shares(row.samples[len(new) :], known, folder / "known")
    else:
        after = success(family, row.files, new, folder / "new", row.flags)
        kept = success(family, row.files, known, folder / "known", row.flags)
    return after["all"], kept["all"]


def possible_rows(family: str) -> list[str]:
    """Return the rows that this family and this machine can train."""
    card = card_of(family)
    possible = {
        "embedding": card.has("learns_embeddings"),
        "known_shape_embedding": card.has("learns_embeddings"),
        "high_noise": card.has("smaller_at_high_noise"),
        "fp16": torch.cuda.is_available(),
    }
    return [name for name in ROWS if possible.get(name, True)]


def run_quietly(command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None) -> float:
    """Run a program and return its seconds of CPU. If it fails, print the end of `log` and raise CalledProcessError."""
    before = os.times()
    with log.open("w") as output:
        status = subprocess.run(command, stdout=output, stderr=output, env=environment).returncode
    if status != 0:
        print("".join(log.read_text(errors="replace").splitlines(keepends=True)[-20:]), file=sys.stderr)
        raise subprocess.CalledProcessError(status, list(map(str, command)))
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="flux", choices=[name for name in demo.FAMILIES if trained.has(name)])
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), help="default: all that are possible here")
    parser.add_argument("--short", action="store_true", help="300 steps without images of known shapes")
    parser.add_argument("--seed", type=int, default=1, help="of the training; default: 1")
    parser.add_argument("--folder", type=Path, help="keep models and images here")
    arguments = parser.parse_args()
    family = arguments.family
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        new, _ = scenes()
        base = trained.copy_model(family, folder / "base")
        of_base = folder / "base" / "new"
        success(family, base, new, of_base)
        print(f"{os.cpu_count()} CPU threads", flush=True)
        kept_column = "" if arguments.short else " kept |"
        print(f"| training | loss | before | after |{kept_column} CPU seconds |", flush=True)
        print("|---" * (5 if arguments.short else 6) + "|", flush=True)
        for name in arguments.rows or possible_rows(family):
            row = train(family, name, folder / name, short=arguments.short, seed=arguments.seed)
            before = shares(images_in(of_base), meant_by(name, new), of_base)["all"]
            after, kept = measured(family, name, row, folder / name)
            if not arguments.short:
                kept_column = f" {kept:.0%} |"
            told = f"| {name} | {row.loss:.4f} | {before:.0%} | {after:.0%} |{kept_column} {row.seconds:.0f} |"
            print(told, flush=True)


if __name__ == "__main__":
    main()
