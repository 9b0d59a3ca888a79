"""Trained miniatures: base models that know `shapes`, and what a LoRA is to teach them.

`benchmarks/trained_miniature.py` makes them; trained/README.md has the commands.
"""

import shutil
from pathlib import Path
from random import Random
from typing import Any

from sd_scripts.families.cards.registry import card_of
from sd_scripts.options.model import MODEL
from sd_scripts.testing.shapes import SIDE, ZORB, random_scene, write_scenes, zorb_scene

FILES = Path(__file__).with_name("trained")
IMAGES = 40
SEED = 5
"""Of the scenes; the zorbs come first."""
PROMPT_FILE = "prompts.txt"
PROMPTS = (
    "a large zorb in the middle on a white background, flat --d 1",
    "a small zorb on the left on a sky background, flat --d 2",
    "a large zorb on the right on a sand background, outlined --d 3",
    "a large red circle in the middle on a grey background, flat --d 4",
)
"""The last shows that what the base model knows is kept."""
OPTIONS: dict[str, Any] = {
    "resolution": f"{SIDE},{SIDE}",
    "train_batch_size": 8,
    "max_train_steps": 550,
    "prior_loss_weight": 0.5,
    "sample_at_first": True,
    "sample_every_n_steps": 275,
}
OF_METHOD: dict[str, dict[str, Any]] = {
    "lora": {"learning_rate": 2.5e-3, "lr_scheduler": "cosine", "network_dim": 16, "network_alpha": 16.0},
    "full": {"learning_rate": 5e-4, "lr_scheduler": "cosine"},
}
"""How the demo's options differ from those of other miniatures."""


def has(family: str) -> bool:
    """Return whether a trained miniature of this family is shipped."""
    return (FILES / family).is_dir()


def copy_model(family: str, folder: Path) -> dict[str, Path]:
    """Copy the files of a model and its tokenizers into a folder; return the former by the option that names each."""
    source = FILES / family
    for path in (file for file in source.rglob("*") if file.is_file()):
        target = folder / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)  # without permissions: an installed package may be read-only
    return {option: folder / file_name(family, option) for option in options_of(family)}


def options_of(family: str) -> list[str]:
    """Return the options that name the files of this family's trained miniature."""
    options = {component.option for component in card_of(family).files.components}
    return sorted(option for option in options if (FILES / family / file_name(family, option)).is_file())


def file_name(family: str, option: str) -> str:
    """Return the name of the file that an option of this family names."""
    return f"miniature_{family}.safetensors" if option == MODEL else f"{option}.safetensors"


def write_data(family: str, folder: Path, seed: int = SEED) -> dict[str, Path]:
    """Write captioned images of zorbs, as many of what the base model knows, and the prompts of the samples; return
    them by the options that name them."""
    random = Random(seed)
    zorbs, known = folder / "images", folder / "known_images"
    write_scenes(zorbs / f"1_{ZORB}", [zorb_scene(random) for _ in range(IMAGES)], random)
    write_scenes(known / "1_shape", [random_scene(random) for _ in range(IMAGES)], random)
    prompts = folder / PROMPT_FILE
    lines = (f"{prompt} --w {SIDE} --h {SIDE} {card_of(family).page.demo_prompts}\n" for prompt in PROMPTS)
    prompts.write_text("".join(lines), encoding="utf-8")
    return {"train_data_dir": zorbs, "reg_data_dir": known, "sample_prompts": prompts}
