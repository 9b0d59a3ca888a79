"""What an image shows of the shapes that the trained miniatures know: how a benchmark sees what was learned."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from sd_scripts.testing.shapes import (
    BACKGROUNDS,
    COLOURS,
    SHAPES,
    SIDE,
    SIZES,
    STAR,
    Polygon,
    Scene,
    polygons,
    regular_polygon,
)

SHOWN = 0.6
"""Overlap (intersection over union) with a shape from which an image shows it."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What an image shows, as far as it can be recognized."""

    colour: str
    """A word of `COLOURS`; empty if there is no shape."""
    shape: str
    """A word of `SHAPES` or `star`; empty if the image shows none of them."""
    background: str
    overlap: float
    """Intersection over union with the shape, 0 to 1."""

    def shows(self, scene: Scene) -> bool:
        """Return whether shape, colour and background match a scene."""
        return (self.shape, self.colour, self.background) == (scene.shape, scene.colour, scene.background)


def recognize(image: Image.Image) -> Seen:
    """Recognize the shape, its colour and the background.

    The background is the median of the border; the shape is what differs from it. Scaled to a square, its overlap with
    each known shape is compared.
    """
    pixels = np.asarray(image.convert("RGB").resize((SIDE, SIDE)), np.float32)
    border = np.concatenate([pixels[:5].reshape(-1, 3), pixels[-5:].reshape(-1, 3), pixels[:, :5].reshape(-1, 3)])
    ground = np.median(border, axis=0)
    background = _nearest(ground, BACKGROUNDS)
    differs = np.linalg.norm(pixels - ground, axis=-1) > 55
    mask = Image.fromarray(differs.astype(np.uint8) * 255).filter(ImageFilter.MedianFilter(5))
    if mask.getbbox() is None:
        return Seen(colour="", shape="", background=background, overlap=0.0)
    inside = np.asarray(mask.filter(ImageFilter.MinFilter(7))) > 0
    rgb = np.median(pixels[inside if inside.any() else np.asarray(mask) > 0], axis=0)
    region = _square(mask)
    overlaps = {shape: max(_overlap(region, known) for known in outlines) for shape, outlines in _outlines().items()}
    best = max(overlaps, key=lambda shape: overlaps[shape])
    shown = overlaps[best] >= SHOWN
    return Seen(
        colour=_nearest(rgb, COLOURS), shape=best if shown else "", background=background, overlap=overlaps[best]
    )


def _nearest(rgb: NDArray[np.float32], palette: dict[str, tuple[int, int, int]]) -> str:
    return min(palette, key=lambda name: float(np.linalg.norm(rgb - np.asarray(palette[name]))))


def _square(mask: Image.Image) -> NDArray[np.bool_]:
    """Cut out what is not black and scale it to (48, 48)."""
    return np.asarray(mask.crop(mask.getbbox()).resize((48, 48), Image.Resampling.BOX)) > 127


def _overlap(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    return float((one & other).sum() / (one | other).sum())


@cache
def _outlines() -> dict[str, list[NDArray[np.bool_]]]:
    """Return the outlines of each shape, scaled to (48, 48): of a star also those with blunter points, since a small
    autoencoder rounds them."""
    shapes = {shape: [list(polygons(shape, SIZES["large"]))] for shape in (*SHAPES, STAR)}
    shapes[STAR] += [[(regular_polygon(10, (40.0, 40.0 * inner)), True)] for inner in (0.5, 0.58, 0.66)]
    return {shape: [_square(_filled(parts)) for parts in variants] for shape, variants in shapes.items()}


def _filled(parts: Iterable[tuple[Polygon, bool]]) -> Image.Image:
    image = Image.new("L", (SIDE, SIDE))
    for polygon, filled in parts:
        ImageDraw.Draw(image).polygon([(a + SIDE / 2, b + SIDE / 2) for a, b in polygon], fill=255 * int(filled))
    return image
