"""FLUX.1 Kontext in miniature: the files of FLUX.1's miniature, and a grey control image for each of its images."""

from dataclasses import replace
from pathlib import Path

from PIL import Image

from sd_scripts.families.flux import tiny
from sd_scripts.families.flux_kontext.card import CARD
from sd_scripts.formats.images.image_folders import find_images
from sd_scripts.testing.miniature import Miniature


def write_miniature(folder: Path) -> Miniature:
    """Make the model's files, tokenizers beside them, captioned images, and what they looked like before."""
    made = tiny.write_miniature(folder)
    controls = folder / "controls"
    for path in find_images(made.data_dir, recursive=True):
        before = controls / path.relative_to(made.data_dir)
        before.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            image.convert("L").save(before)
    return replace(made, family=CARD.name, files={**made.files, "control_directory": controls})


write_narrow = write_miniature
