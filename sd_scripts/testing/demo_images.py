"""Draw a dozen captioned images: a dataset without a download, for the demo and for tests."""

import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

COLOURS = {"red": "#d8433b", "blue": "#3f6fd8", "green": "#3fa34d", "yellow": "#e8c33c"}
BACKGROUNDS = {"white": "#f6f4ef", "grey": "#9a9a9a", "black": "#16181c"}
SIDES = {"circle": 60, "triangle": 3, "square": 4}
"""Shape -> sides of the polygon that draws it."""
SIZES = ((256, 256), (320, 240), (240, 256), (384, 256))
"""(width, height): several aspect ratios, which make two buckets."""
FOLDER = "10_shapes"


def captions() -> list[str]:
    """Return a caption for every shape in every colour, cycling through the backgrounds."""
    pairs = [(shape, colour) for shape in SIDES for colour in COLOURS]
    places = list(BACKGROUNDS)
    return [f"a {c} {shape} on a {places[i % 3]} background" for i, (shape, c) in enumerate(pairs)]


def draw(caption: str, size: tuple[int, int]) -> Image.Image:
    """Draw what one of `captions()` describes, at size (width, height)."""
    _, colour, shape, _, _, background, _ = caption.split()
    image = Image.new("RGB", size, BACKGROUNDS[background])
    width, height = size
    radius = 0.36 * min(size)
    sides = SIDES[shape]
    turns = [(n + 0.5) * 2 * math.pi / sides + math.pi / 2 for n in range(sides)]
    corners = [(width / 2 + radius * math.cos(t), height / 2 + radius * math.sin(t)) for t in turns]
    ImageDraw.Draw(image).polygon(corners, fill=COLOURS[colour])
    return image


def write_images(folder: Path, sizes: Sequence[tuple[int, int]] = SIZES) -> Path:
    """Fill `folder/10_shapes` with a .png and a .txt for each caption, in these sizes (width, height) in turn; return
    `folder`, the train_data_dir."""
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    for number, caption in enumerate(captions()):
        stem = folder / FOLDER / caption[2:].replace(" ", "_")
        draw(caption, sizes[number % len(sizes)]).save(stem.with_suffix(".png"))
        stem.with_suffix(".txt").write_text(caption + "\n", encoding="utf-8")
    return folder
