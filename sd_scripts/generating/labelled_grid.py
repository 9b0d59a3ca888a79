"""Draw images as one with texts: heads above the columns, and a text next to each row."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont, ImageOps

MOST_SIDE = 12_000
"""Pixels of the longer side of the grid."""
CELL, SMALLEST = 384, 96
"""Pixels of the longer side of an image in the grid, and how small it becomes where there are many."""
GAP, LEFT, LINE, FONT = 8, 220, 18, 14
"""Pixels between images, of the column with the texts, of a line of text, and of its font."""
PAPER, INK, QUIET, BEST = "#ffffff", "#111827", "#6b7280", "#0f766e"
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
FONTS = ("NotoSansCJK-Regular.ttc", "DejaVuSans.ttf", "LiberationSans-Regular.ttf", "Arial.ttf", "arial.ttf")
"""Fonts of the system, those with most languages first."""
MOST_LINES = 12
"""Lines of a row's text."""
HEAD = 4 * LINE + GAP
"""Pixels above the first row."""
Cell = tuple[int, int]
"""Column and row of the grid."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """What stands above a column."""

    lines: Sequence[str]
    is_best: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """What stands next to a row, and the size of its images in pixels."""

    text: str
    note: str
    width: int
    height: int


class LabelledGrid:
    """A grid with its texts, into which images are pasted."""

    def __init__(self, title: str, heads: Sequence[Head], rows: Sequence[Row], most: int = MOST_SIDE) -> None:
        """`most`: pixels of the longer side, where it can be kept."""
        largest = max((max(row.width, row.height) for row in rows), default=CELL)
        self._side = min(cell_side(len(heads), len(rows), most), max(2 * largest, SMALLEST))
        self._heights = [_height(row, self._side) for row in rows]
        self._font = load_font()
        size = (self._left(len(heads)), HEAD + sum(self._heights) + GAP * len(rows))
        self.image = Image.new("RGB", size, PAPER)
        pen = ImageDraw.Draw(self.image)
        lines = wrapped(title, LEFT - 2 * GAP, self._font)[:3]
        pen.multiline_text((GAP, GAP), "\n".join(lines), INK, self._font)
        for column, head in enumerate(heads):
            self._write_head(pen, head, self._left(column))
        for number, row in enumerate(rows):
            self._write_row(pen, row, self._top(number), self._heights[number])

    def paste(self, cell: Cell, image: Image.Image) -> None:
        column, row = cell
        fitting = ImageOps.contain(image, (self._side, self._heights[row]))
        self.image.paste(fitting, (self._left(column), self._top(row)))

    def _left(self, column: int) -> int:
        return LEFT + column * (self._side + GAP)

    def _top(self, row: int) -> int:
        return HEAD + sum(self._heights[:row]) + GAP * row

    def _write_head(self, pen: ImageDraw.ImageDraw, head: Head, left: int) -> None:
        if head.is_best:
            pen.rectangle((left, 0, left + self._side, 4), BEST)
        fitting = [line for each in head.lines for line in wrapped(each, self._side, self._font)][:4]
        pen.multiline_text((left, GAP), "\n".join(fitting), BEST if head.is_best else INK, self._font)

    def _write_row(self, pen: ImageDraw.ImageDraw, row: Row, top: int, height: int) -> None:
        fitting = min(MOST_LINES, max(1, height // LINE - 1))
        lines = wrapped(row.text, LEFT - 2 * GAP, self._font)[:fitting]
        pen.multiline_text((GAP, top), "\n".join(lines), INK, self._font)
        pen.text((GAP, top + LINE * len(lines)), row.note, QUIET, self._font)


def load_font() -> Font:
    """Return the first font of FONTS that this machine has, else Pillow's own, which has Latin letters only."""
    for name in FONTS:
        with contextlib.suppress(OSError):
            return ImageFont.truetype(name, FONT)
    return ImageFont.load_default(FONT)


def cell_side(columns: int, rows: int, most: int = MOST_SIDE) -> int:
    """Return the longer side of an image, such that the grid stays within `most` pixels where it can."""
    return max(SMALLEST, min(CELL, (most - LEFT) // max(columns, 1) - GAP, most // max(rows, 1) - GAP))


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


def _height(row: Row, side: int) -> int:
    """Return the height of a row whose images fit into a square of this side."""
    height: int = round(side * row.height / max(row.width, row.height))
    return max(LINE * 3, height)
