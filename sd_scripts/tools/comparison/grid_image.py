"""Draw a comparison as one image: a column for each checkpoint and strength, a row for each prompt and seed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from PIL import Image

from sd_scripts.formats.atomic_files import atomic_file
from sd_scripts.formats.clips.mp4 import MP4, first_frame, read_frames, write_mp4
from sd_scripts.formats.clips.mp4_header import read_mp4_header
from sd_scripts.formats.disk import saving
from sd_scripts.formats.words import some
from sd_scripts.generating.labelled_grid import MOST_SIDE, Cell, Head, LabelledGrid, Row

MOST_CLIP_SIDE = 3840
"""Pixels of the longer side of a grid of clips, which players decode while they show it."""
MOST_CLIPS = 100
"""Clips of a grid, which are all decoded together."""


def write_grid(path: Path, comparison: Mapping[str, Any]) -> None:
    """Write the images of a comparison, as in its RESULT file, into one. Raises OSError, one sentence."""
    grid = draw_grid(path.parent, comparison)
    with saving(path), atomic_file(path) as part:
        grid.save(part, format="PNG")


def write_grid_clip(path: Path, comparison: Mapping[str, Any]) -> bool:
    """Write the clips of a comparison into one that plays them together; return False if all are images. Raises
    ValueError, one sentence, if they cannot play together, and OSError."""
    files = list(_files(path.parent, comparison))
    clips = [file for _, file in files if file.suffix == MP4]
    if not clips:
        return False
    if why := _why_apart(clips, len(files)):
        raise ValueError(f"Not available as one clip: {why}")
    fps = read_mp4_header(clips[0]).fps
    with saving(path), atomic_file(path) as part, contextlib.ExitStack() as opened:
        readers = [(cell, opened.enter_context(closing(read_frames(file)))) for cell, file in files]
        write_mp4(part, _frames(_empty(comparison, MOST_CLIP_SIDE), readers), fps)
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
    grid = _empty(comparison, MOST_SIDE)
    for cell, file in _files(folder, comparison):
        grid.paste(cell, _first_image(file))
    return grid.image


def _first_image(file: Path) -> Image.Image:
    if file.suffix == MP4:
        return first_frame(file)
    with Image.open(file) as opened:
        return opened.convert("RGB")


def _columns(comparison: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the number of the checkpoint and of the strength of each column."""
    return [(c, s) for c in range(len(comparison["checkpoints"])) for s in range(len(comparison["strengths"]))]


def _files(folder: Path, comparison: Mapping[str, Any]) -> Iterator[tuple[Cell, Path]]:
    """Yield the place and the file of each image that is there."""
    columns = _columns(comparison)
    for cell in comparison["cells"]:
        column = columns.index((cell["checkpoint"], cell["strength"]))
        if cell["image"] and (folder / cell["image"]).is_file():
            yield (column, cell["prompt"]), folder / cell["image"]


def _empty(comparison: Mapping[str, Any], most: int) -> LabelledGrid:
    """Return the grid without images."""
    heads = [_head(comparison, checkpoint, strength) for checkpoint, strength in _columns(comparison)]
    rows = [
        Row(text=each["prompt"], note=f"seed {each['seed']}", width=each["width"], height=each["height"])
        for each in comparison["prompts"]
    ]
    return LabelledGrid(comparison["title"], heads, rows, most)


def _head(comparison: Mapping[str, Any], number: int, of_strength: int) -> Head:
    checkpoint, strength = comparison["checkpoints"][number], comparison["strengths"][of_strength]
    if strength == 0:
        return Head(lines=["base model"])
    is_best = comparison["best"] == number
    loss = "" if checkpoint["loss"] is None else f"loss {checkpoint['loss']:.4f}"
    lines = [f"{checkpoint['label']}, strength {strength:g}", *([loss] if loss else []), *(["best"] if is_best else [])]
    return Head(lines=lines, is_best=is_best)


def _frames(grid: LabelledGrid, readers: Sequence[tuple[Cell, Iterator[Image.Image]]]) -> Iterator[Image.Image]:
    """Yield the grid with each frame of the clips, until one of them ends."""
    while True:
        for cell, reader in readers:
            if (frame := next(reader, None)) is None:
                return
            grid.paste(cell, frame)
        yield grid.image
