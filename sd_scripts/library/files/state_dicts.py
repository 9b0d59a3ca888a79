"""State dicts: types, and reading sizes from the shapes of a file."""

import re
from collections.abc import Mapping

from torch import Tensor

State = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]


def count(shapes: Shapes, numbered: str) -> int:
    """Return how many keys match the regular expression `numbered` in full."""
    return sum(bool(re.fullmatch(numbered, key)) for key in shapes)


def take(file: State, keys: dict[str, str]) -> State:
    """Return the tensors that the file has, by new name; `keys`: new name -> key in the file."""
    return {name: file[key] for name, key in keys.items() if key in file}


def renamed(key: str, names: Mapping[str, str]) -> str:
    """Rename the module of a key, or the whole key of a parameter of its own."""
    if key in names:
        return names[key]
    module, _, kind = key.rpartition(".")
    return f"{names[module]}.{kind}" if module in names else key
