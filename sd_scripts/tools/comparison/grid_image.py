"""Draw a comparison as one image: a column for each checkpoint and strength, a row for each prompt and seed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont, ImageOps

from sd_scripts.formats.atomic_files import atomic_file
from sd_scripts.formats.disk import saving

MOST_SIDE = 12_000
"""Pixels of the longer side of the grid."""
CELL, SMALLEST = 384, 96
"""Pixels of the longer side of an image in the grid, and how small it becomes where there are many."""
GAP, LEFT, LINE, FONT = 8, 220, 18, 14
"""Pixels between images, of the column with the prompts, of a line of text, and of its font."""
PAPER, INK, QUIET, BEST = "#ffffff", "#111827", "#6b7280", "#0f766e"
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
FONTS = ("NotoSansCJK-Regular.ttc", "DejaVuSans.ttf", "LiberationSans-Regular.ttf", "Arial.ttf", "arial.ttf")
"""Fonts of the system, those with most languages first."""
MOST_LINES = 12
"""Lines of a prompt."""


def write_grid(path: Path, comparison: Mapping[str, Any]) -> None:
    """Write the images of a comparison, as in its RESULT file, into one. Raises OSError, one sentence."""
    grid = draw_grid(path.parent, comparison)
    with saving(path), atomic_file(path) as part:
        grid.save(part, format="PNG")


def draw_grid(folder: Path, comparison: Mapping[str, Any]) -> Image.Image:
    """Return the grid; an image that is not there leaves its place empty."""
    cells = [cell for cell in comparison["cells"] if cell["image"]]
    images = {(cell["checkpoint"], cell["strength"], cell["prompt"]): folder / cell["image"] for cell in cells}
    checkpoints = comparison["checkpoints"]
    strengths = comparison["strengths"]
    prompts = comparison["prompts"]
    columns = [(c, s) for c in range(len(checkpoints)) for s in range(len(strengths))]
    largest = max((max(prompt["width"], prompt["height"]) for prompt in prompts), default=CELL)
    side = min(cell_side(len(columns), len(prompts)), max(2 * largest, SMALLEST))
    heights = [_height(prompt, side) for prompt in prompts]
    font = load_font()
    head = 4 * LINE + GAP
    grid = Image.new("RGB", (LEFT + len(columns) * (side + GAP), head + sum(heights) + GAP * len(heights)), PAPER)
    pen = ImageDraw.Draw(grid)
    pen.multiline_text((GAP, GAP), "\n".join(wrapped(comparison["title"], LEFT - 2 * GAP, font)[:3]), INK, font)
    for column, (checkpoint, strength) in enumerate(columns):
        left = LEFT + column * (side + GAP)
        best = comparison["best"] == checkpoint and strengths[strength] != 0
        if best:
            pen.rectangle((left, 0, left + side, 4), BEST)
        lines = _column_head(checkpoints[checkpoint], strengths[strength], best=best)
        fitting = [line for each in lines for line in wrapped(each, side, font)][:4]
        pen.multiline_text((left, GAP), "\n".join(fitting), BEST if best else INK, font)
        top = head
        for row, height in enumerate(heights):
            if (file := images.get((checkpoint, strength, row))) and file.is_file():
                with Image.open(file) as opened:
                    grid.paste(ImageOps.contain(opened.convert("RGB"), (side, height)), (left, top))
            top += height + GAP
    top = head
    for prompt, height in zip(prompts, heights, strict=True):
        lines = wrapped(prompt["prompt"], LEFT - 2 * GAP, font)[: min(MOST_LINES, max(1, height // LINE - 1))]
        pen.multiline_text((GAP, top), "\n".join(lines), INK, font)
        pen.text((GAP, top + LINE * len(lines)), f"seed {prompt['seed']}", QUIET, font)
        top += height + GAP
    return grid


def load_font() -> Font:
    """Return the first font of FONTS that this machine has, else Pillow's own, which has Latin letters only."""
    for name in FONTS:
        with contextlib.suppress(OSError):
            return ImageFont.truetype(name, FONT)
    return ImageFont.load_default(FONT)


def cell_side(columns: int, rows: int) -> int:
    """Return the longer side of an image, such that the grid stays within MOST_SIDE where it can."""
    return max(SMALLEST, min(CELL, (MOST_SIDE - LEFT) // max(columns, 1) - GAP, MOST_SIDE // max(rows, 1) - GAP))


def wrapped(text: str, width: int, font: Font) -> list[str]:
    """Return a text in lines of at most `width` pixels; a word that is longer is cut."""
    lines, line = [], ""
    for word in text.split():
        while font.getlength(word) > width:
            fits = next(n for n in range(len(word) - 1, 0, -1) if n == 1 or font.getlength(word[:n]) <= width)
            lines += [line] * bool(line) + [word[:fits]]
            word, line = word[fits:], ""
        longer = f"{line} {word}".strip()
        if font.getlength(longer) > width:
            lines.append(line)
            longer = word
        line = longer
    return [*lines, line] if line else lines


def _column_head(checkpoint: Mapping[str, Any], strength: float, *, best: bool) -> Sequence[str]:
    if strength == 0:
        return ["base model"]
    loss = "" if checkpoint["loss"] is None else f"loss {checkpoint['loss']:.4f}"
    return [f"{checkpoint['label']}, strength {strength:g}", *([loss] if loss else []), *(["best"] if best else [])]


def _height(prompt: Mapping[str, Any], side: int) -> int:
    """Return the height of a row whose images fit into a square of this side."""
    longer = max(prompt["width"], prompt["height"])
    height: int = round(side * prompt["height"] / longer)
    return max(LINE * 3, height)
