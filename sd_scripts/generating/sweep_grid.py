"""The images of a sweep as one labelled grid for each prompt."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from PIL import Image

from sd_scripts.formats.atomic_files import atomic_file
from sd_scripts.formats.clips.mp4 import MP4, first_frame
from sd_scripts.formats.disk import saving
from sd_scripts.generating.labelled_grid import Head, LabelledGrid, Row
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.sweeps import Cell

ENDING = "-grid.png"
"""End of the file name of a grid, after that of its first image."""


class SweepGrid:
    """Collects the images of the cells."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._cells = cells
        self._made: dict[tuple[int, int], list[tuple[Path, SamplePrompt]]] = {}

    def add(self, cell: Cell, made: Iterable[tuple[Path, SamplePrompt]]) -> None:
        """Add images, in the order of the prompts."""
        self._made.setdefault((cell.column, cell.row), []).extend(made)

    def write(self) -> list[Path]:
        """Write a grid for each image of a cell, and return the files; none without a sweep. Raises OSError, one
        sentence."""
        if len(self._cells) < 2:
            return []
        return [self._write(number) for number in range(len(self._made[0, 0]))]

    def _write(self, number: int) -> Path:
        images = {place: made[number] for place, made in self._made.items()}
        first, prompt = images[0, 0]
        heads = [Head(lines=[_words(cell.labels, 0)]) for cell in self._cells if cell.row == 0]
        rows = []
        for row in sorted({cell.row for cell in self._cells}):
            cell = next(each for each in self._cells if each.row == row)
            of_row = [made for (_, place), (_, made) in images.items() if place == row]
            width, height = max(each.width for each in of_row), max(each.height for each in of_row)
            text = _words(cell.labels, 1) or prompt.prompt
            rows.append(Row(text=text, note=f"seed {of_row[0].seed}", width=width, height=height))
        grid = LabelledGrid(prompt.prompt if len(rows) > 1 else "", heads, rows)
        for place, (file, _) in images.items():
            grid.paste(place, _image(file))
        path = first.with_name(f"{first.stem}{ENDING}")
        with saving(path), atomic_file(path) as part:
            grid.image.save(part, format="PNG")
        return path


def _words(labels: Mapping[str, str], axis: int) -> str:
    """Return "steps 20" for an axis; empty if it is not used."""
    named = [f"{name} {value}" for name, value in labels.items()]
    return named[axis] if axis < len(named) else ""


def _image(file: Path) -> Image.Image:
    if file.suffix == MP4:
        return first_frame(file)
    with Image.open(file) as opened:
        return opened.convert("RGB")
