"""Draw a comparison as one image: a column for each checkpoint and strength, a row for each prompt and seed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont, ImageOps

from sd_scripts.formats.atomic_files import atomic_file
from sd_scripts.formats.clips.mp4 import MP4, first_frame, read_frames, write_mp4
from sd_scripts.formats.clips.mp4_header import read_mp4_header
from sd_scripts.formats.disk import saving
from sd_scripts.formats.words import some

MOST_SIDE = 12_000
"""Pixels of the longer side of the grid."""
MOST_CLIP_SIDE = 3840
"""The same of a grid of clips, which players decode while they show it."""
MOST_CLIPS = 100
"""Clips of a grid, which are all decoded together."""
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
HEAD = 4 * LINE + GAP
"""Pixels above the first row."""


def write_grid(path: Path, comparison: Mapping[str, Any]) -> None:
    """Write the images of a comparison, as in its RESULT file, into one. Raises OSError, one sentence."""
    grid = draw_grid(path.parent, comparison)
    with saving(path), atomic_file(path) as part:
        grid.save(part, format="PNG")


def write_grid_clip(path: Path, comparison: Mapping[str, Any]) -> bool:
    """Write the clips of a comparison into one that plays them together; return False if all are images. Raises
    ValueError, one sentence, if they cannot play together, and OSError."""
    layout = GridLayout(comparison, MOST_CLIP_SIDE)
    files = list(layout.files(path.parent))
    clips = [file for _, file in files if file.suffix == MP4]
    if not clips:
        return False
    if why := _why_apart(clips, len(files)):
        raise ValueError(f"Not available as one clip: {why}")
    fps = read_mp4_header(clips[0]).fps
    with saving(path), atomic_file(path) as part, contextlib.ExitStack() as opened:
        readers = [(cell, opened.enter_context(closing(read_frames(file)))) for cell, file in files]
        write_mp4(part, layout.frames(readers), fps)
    return True


def _why_apart(clips: Sequence[Path], count: int) -> str:
    """Return why the clips of a grid of `count` images and clips cannot play together; empty if they can."""
    if len(clips) < count:
        return "some prompts are single images"
    if len(clips) > MOST_CLIPS:
        return f"there are {len(clips)}, and at most {MOST_CLIPS} can play together"
    headers = [read_mp4_header(clip) for clip in clips]
    lengths = dict.fromkeys(f"{header.frames} frames at {header.fps:g} fps" for header in headers)
    return f"the clips differ in length: {some(list(lengths))}" if len(lengths) > 1 else ""


def draw_grid(folder: Path, comparison: Mapping[str, Any]) -> Image.Image:
    """Return the grid, with the first frame of each clip; an image that is not there leaves its place empty."""
    layout = GridLayout(comparison, MOST_SIDE)
    for cell, file in layout.files(folder):
        layout.paste(cell, _first_image(file))
    return layout.image


def _first_image(file: Path) -> Image.Image:
    if file.suffix == MP4:
        return first_frame(file)
    with Image.open(file) as opened:
        return opened.convert("RGB")


Cell = tuple[int, int]
"""Column and row of the grid."""


class GridLayout:
    """A grid with its texts, and the place of each image in it."""

    def __init__(self, comparison: Mapping[str, Any], most: int) -> None:
        """`most`: pixels of the longer side, where it can be kept."""
        self._comparison = comparison
        prompts = comparison["prompts"]
        self._columns = [
            (c, s) for c in range(len(comparison["checkpoints"])) for s in range(len(comparison["strengths"]))
        ]
        largest = max((max(prompt["width"], prompt["height"]) for prompt in prompts), default=CELL)
        self._side = min(cell_side(len(self._columns), len(prompts), most), max(2 * largest, SMALLEST))
        self._heights = [_height(prompt, self._side) for prompt in prompts]
        self._font = load_font()
        self.image = self._drawn()

    def files(self, folder: Path) -> Iterator[tuple[Cell, Path]]:
        """Yield the place and the file of each image that is there."""
        for cell in self._comparison["cells"]:
            column = self._columns.index((cell["checkpoint"], cell["strength"]))
            if cell["image"] and (folder / cell["image"]).is_file():
                yield (column, cell["prompt"]), folder / cell["image"]

    def paste(self, cell: Cell, image: Image.Image) -> None:
        column, row = cell
        top = HEAD + sum(self._heights[:row]) + GAP * row
        self.image.paste(ImageOps.contain(image, (self._side, self._heights[row])), (self._left(column), top))

    def frames(self, readers: Sequence[tuple[Cell, Iterator[Image.Image]]]) -> Iterator[Image.Image]:
        """Yield the grid with each frame of the clips, until one of them ends."""
        while True:
            for cell, reader in readers:
                if (frame := next(reader, None)) is None:
                    return
                self.paste(cell, frame)
            yield self.image

    def _left(self, column: int) -> int:
        return LEFT + column * (self._side + GAP)

    def _drawn(self) -> Image.Image:
        """Return the grid without images."""
        rows = self._heights
        size = (self._left(len(self._columns)), HEAD + sum(rows) + GAP * len(rows))
        grid = Image.new("RGB", size, PAPER)
        pen = ImageDraw.Draw(grid)
        title = wrapped(self._comparison["title"], LEFT - 2 * GAP, self._font)[:3]
        pen.multiline_text((GAP, GAP), "\n".join(title), INK, self._font)
        for number in range(len(self._columns)):
            self._write_head(pen, number)
        top = HEAD
        for prompt, height in zip(self._comparison["prompts"], rows, strict=True):
            self._write_prompt(pen, prompt, top, height)
            top += height + GAP
        return grid

    def _write_head(self, pen: ImageDraw.ImageDraw, column: int) -> None:
        checkpoint, number = self._columns[column]
        strength = self._comparison["strengths"][number]
        left = self._left(column)
        best = self._comparison["best"] == checkpoint and strength != 0
        if best:
            pen.rectangle((left, 0, left + self._side, 4), BEST)
        lines = _column_head(self._comparison["checkpoints"][checkpoint], strength, best=best)
        fitting = [line for each in lines for line in wrapped(each, self._side, self._font)][:4]
        pen.multiline_text((left, GAP), "\n".join(fitting), BEST if best else INK, self._font)

    def _write_prompt(self, pen: ImageDraw.ImageDraw, prompt: Mapping[str, Any], top: int, height: int) -> None:
        fitting = min(MOST_LINES, max(1, height // LINE - 1))
        lines = wrapped(prompt["prompt"], LEFT - 2 * GAP, self._font)[:fitting]
        pen.multiline_text((GAP, top), "\n".join(lines), INK, self._font)
        pen.text((GAP, top + LINE * len(lines)), f"seed {prompt['seed']}", QUIET, self._font)


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
