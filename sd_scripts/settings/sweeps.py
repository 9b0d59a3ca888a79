"""Compare values of options: an image for each value of one option, or for each pair of values of two."""

import csv
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from sd_scripts.options.generating.generate import FILES_OF, GenerateOptions
from sd_scripts.options.generating.prompt_lines import LARGEST_SEED, NEW_SEED
from sd_scripts.options.spec import Option
from sd_scripts.settings.settings import Settings

SWEPT = (
    *("lora_multiplier", "lora_weights", "steps", "scale", "guidance", "shift", "sampler", "image_seed"),
    *("width", "height", "frames", "fps", "negative_prompt"),
)
"""Options with values to compare: those that leave the model as it is."""
FIRST_OF = {*FILES_OF, *FILES_OF.values()}
"""Options with lists whose first entry is compared."""
MOST_CELLS = 400
AXES = 2
Changes = Mapping[str, Mapping[str, object]]
"""A value of an axis, as it was written -> the option with it."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A place in the grid."""

    settings: Settings
    labels: Mapping[str, str]
    """Option -> its value here, as it was written."""
    column: int
    row: int


def cells_of(settings: Settings, seed: int | None = None) -> list[Cell]:
    """Return the cells of the grid, row by row; without a sweep, one. All have the same seeds, unless seeds are
    compared: `seed` in a prompt without one. Raises ValueError, one sentence."""
    options = settings[GenerateOptions]
    (across, columns), (down, rows) = _axes(options, settings.options)
    takes_seed = (across or down) and "image_seed" not in (across, down)
    if seed is not None and takes_seed and options.image_seed in (None, NEW_SEED):
        settings = settings.replaced({"image_seed": seed % (LARGEST_SEED + 1)})
    return [
        Cell(
            settings=settings.replaced({**columns[one], **rows[other]}),
            labels={name: value for name, value in ((across, one), (down, other)) if name},
            column=column,
            row=row,
        )
        for (row, other), (column, one) in itertools.product(enumerate(rows), enumerate(columns))
    ]


def _axes(options: GenerateOptions, known: Mapping[str, Option]) -> list[tuple[str, Changes]]:
    """Return the option and the changes of each axis; an axis that is not used has neither, but one place."""
    found = [_axis(text, options, known) for text in options.sweep]
    if len(found) > AXES:
        raise ValueError(f"sweep: compares {len(found)} options; compare one or two")
    if len({name for name, _ in found}) < len(found):
        raise ValueError(f"sweep: names {found[0][0]} twice; compare two different options")
    axes = [*found, *[("", {"": {}})] * (AXES - len(found))]
    if (cells := len(axes[0][1]) * len(axes[1][1])) > MOST_CELLS:
        raise ValueError(f"sweep: makes {cells:,} images of each prompt; compare at most {MOST_CELLS}")
    return axes


def _axis(text: str, options: GenerateOptions, known: Mapping[str, Option]) -> tuple[str, Changes]:
    name, _, listed = text.partition("=")
    name = name.strip().lstrip("-")
    if name not in SWEPT or name not in known:
        names = ", ".join(each for each in SWEPT if each in known)
        raise ValueError(f"sweep: {text!r} is not an option with values, such as steps=10,20; choose among {names}")
    written = map(str.strip, next(csv.reader([listed], skipinitialspace=True), []))
    values = list(dict.fromkeys(filter(None, written)))
    if not values:
        raise ValueError(f"sweep: {name} has no values; write {name}=first,second")
    if name == "lora_multiplier" and not options.lora_weights:
        raise ValueError("sweep: there is no adapter whose strength could be compared; set lora_weights")
    option = known[name]
    changes = {}
    for value in values:
        read = option.read([value] if option.many else value)
        if problem := option.problem(read):
            raise ValueError(f"sweep: {name}: {problem}")
        first = [value, *map(str, getattr(options, name)[1:])] if name in FIRST_OF else value
        changes[value] = {name: option.read(first)}
    return name, changes
