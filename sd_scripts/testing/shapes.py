"""Drawn scenes with captions: data on which a training can be seen to work.

A scene is one shape on a plain background. The trained miniatures know `COLOURS` and `SHAPES`; they have never seen
`ZORB`, an orange star, which a LoRA teaches them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from PIL import Image, ImageDraw

SIDE = 128
"""Pixels of an image's side."""
OVERSAMPLING = 4
"""Scenes are drawn this many times larger, so that edges are smooth."""
COLOURS = {
    "red": (214, 52, 44),
    "orange": (240, 136, 30),
    "yellow": (246, 214, 48),
    "green": (52, 160, 70),
    "teal": (30, 150, 160),
    "blue": (44, 84, 206),
}
BACKGROUNDS = {
    "white": (246, 246, 242),
    "grey": (150, 150, 150),
    "black": (20, 20, 24),
    "sky": (168, 212, 242),
    "sand": (226, 206, 160),
}
SHAPES = ("circle", "square", "triangle", "diamond", "ring", "cross")
SIZES = {"small": 20.0, "large": 34.0}
"""Radius in pixels."""
PLACES = {
    "on the left": (-1, 0),
    "on the right": (1, 0),
    "at the top": (0, -1),
    "at the bottom": (0, 1),
    "in the middle": (0, 0),
}
"""Where a shape is -> direction from the middle, x and y."""
STYLES = ("flat", "outlined")
ZORB, STAR = "zorb", "star"
ZORB_COLOUR = "orange"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What an image shows. `noun` is a word of `SHAPES`, or `ZORB`, whose caption names no colour."""

    noun: str
    colour: str
    background: str
    size: str = "large"
    place: str = "in the middle"
    style: str = "flat"

    @property
    def shape(self) -> str:
        return STAR if self.noun == ZORB else self.noun

    @property
    def rgb(self) -> tuple[int, int, int]:
        return COLOURS[self.colour]

    def caption(self, leave_out: frozenset[str] = frozenset()) -> str:
        """Return the caption without the attributes named in `leave_out`."""
        words = {"size": self.size, "colour": "" if self.noun == ZORB else self.colour, "noun": self.noun}
        parts = ["a", *(word for name, word in words.items() if word and name not in leave_out)]
        if "place" not in leave_out:
            parts.append(self.place)
        if "background" not in leave_out:
            parts.append(f"on a {self.background} background")
        return " ".join(parts) + ("" if "style" in leave_out else f", {self.style}")

    def draw(self, random: Random) -> Image.Image:
        """Draw the scene, (128, 128); position and size vary a little."""
        radius = SIZES[self.size] * random.uniform(0.92, 1.08)
        reach = SIDE / 2 - 1.2 * radius - 4  # as far as a shape may move
        x, y = (SIDE / 2 + reach * 0.85 * way + random.uniform(-4, 4) for way in PLACES[self.place])
        ground = BACKGROUNDS[self.background]
        return draw_shape(self.shape, self.rgb, ground, radius, (x, y), outlined=self.style == "outlined")


Rgb = tuple[int, int, int]


def draw_shape(
    shape: str, rgb: Rgb, ground: Rgb, radius: float, middle: tuple[float, float], *, outlined: bool
) -> Image.Image:
    """Draw a shape of this radius around its middle, in pixels; (128, 128)."""
    x, y = middle
    image = Image.new("RGB", (SIDE * OVERSAMPLING,) * 2, ground)
    drawing = ImageDraw.Draw(image)
    dark = tuple(value * 2 // 5 for value in rgb)
    for inset, colour in ((0.0, dark), (radius / 9, rgb)) if outlined else ((0.0, rgb),):
        for polygon, filled in polygons(shape, radius, inset):
            corners = [((x + a) * OVERSAMPLING, (y + b) * OVERSAMPLING) for a, b in polygon]
            drawing.polygon(corners, fill=colour if filled else ground)
    return image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


Polygon = list[tuple[float, float]]


def polygons(shape: str, radius: float, inset: float = 0.0) -> Iterator[tuple[Polygon, bool]]:
    """Yield the polygons of a shape around the origin and whether each is filled, outermost first. `inset` moves all
    edges inwards by this many pixels."""
    if shape == "circle":
        yield regular_polygon(64, radius - inset), True
    elif shape == "ring":
        yield regular_polygon(64, radius - inset), True
        yield regular_polygon(64, 0.5 * radius + inset), False
    elif shape in ("square", "diamond", "triangle"):
        sides, turn, scale = {"square": (4, 0.5, 1.15), "diamond": (4, 0.0, 1.15), "triangle": (3, 0.0, 1.1)}[shape]
        yield regular_polygon(sides, scale * radius - inset / math.cos(math.pi / sides), turn), True
    elif shape == "cross":
        arm, long = radius / 3 - inset, radius - inset
        yield [(-long, -arm), (long, -arm), (long, arm), (-long, arm)], True
        yield [(-arm, -long), (arm, -long), (arm, long), (-arm, long)], True
    else:
        outer, inner = 1.15 * radius - 2.2 * inset, 0.48 * radius - 0.9 * inset
        yield regular_polygon(10, (outer, inner)), True


def regular_polygon(corners: int, radius: float | tuple[float, float], turn: float = 0.0) -> Polygon:
    """Return a polygon whose first corner is at the top, turned by a part of a corner; with two radii, a star."""
    radii = radius if isinstance(radius, tuple) else (radius,)
    angles = [(n + turn) * 2 * math.pi / corners - math.pi / 2 for n in range(corners)]
    return [(radii[n % len(radii)] * math.cos(a), radii[n % len(radii)] * math.sin(a)) for n, a in enumerate(angles)]


def random_scene(random: Random) -> Scene:
    """Return one of the scenes that a base model is trained on."""
    return Scene(
        noun=random.choice(SHAPES),
        colour=random.choice(list(COLOURS)),
        background=random.choice(list(BACKGROUNDS)),
        size=random.choice(list(SIZES)),
        place=random.choice(list(PLACES)),
        style=random.choice(STYLES),
    )


def zorb_scene(random: Random) -> Scene:
    """Return a scene with a zorb."""
    return replace(random_scene(random), noun=ZORB, colour=ZORB_COLOUR)


def words() -> list[str]:
    """Return the words of all captions, longest first, so that a tokenizer finds none within another. The zorb is
    not among them: it is new to a base model."""
    places = " ".join(PLACES).split()
    known = {"a", "on", "background", *places, *SIZES, *COLOURS, *SHAPES, *BACKGROUNDS, *STYLES}
    return sorted(known, key=lambda word: (-len(word), word))


def write_scenes(
    folder: Path, scenes: list[Scene], random: Random, leave_out: float = 0.0, empty: float = 0.0, first: int = 0
) -> Path:
    """Fill a folder with a .png and a .txt for each scene, numbered from `first`. Each attribute is left out of the
    caption with the probability `leave_out`, and a caption is empty with the probability `empty`. Returns the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    attributes = ("size", "colour", "place", "background", "style")
    for number, scene in enumerate(scenes, first):
        hidden = frozenset(name for name in attributes if random.random() < leave_out)
        stem = folder / f"{number:05}"
        scene.draw(random).save(stem.with_suffix(".png"), compress_level=1)
        caption = "" if random.random() < empty else scene.caption(hidden)
        stem.with_suffix(".txt").write_text(caption + "\n", encoding="utf-8")
    return folder
