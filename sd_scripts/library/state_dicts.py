"""State dicts: types, and reading sizes from the shapes of a file."""

import re
from collections.abc import Mapping

from torch import Tensor

State = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]


class ShapesBelow:
    """The shapes of the keys with a prefix. Raises ValueError naming a missing key."""

    def __init__(self, shapes: Shapes, prefix: str):
        self.prefix = prefix
        self.shapes = {key.removeprefix(prefix): tuple(s) for key, s in shapes.items() if key.startswith(prefix)}

    def __getitem__(self, key: str) -> tuple[int, ...]:
        if key not in self.shapes:
            raise ValueError(f"'{self.prefix}{key}' is missing")
        return self.shapes[key]

    def count(self, numbered: str) -> int:
        """Return how many keys match the regular expression `numbered` in full."""
        return sum(bool(re.fullmatch(numbered, key)) for key in self.shapes)


def take(file: State, keys: dict[str, str]) -> State:
    """Return the tensors that the file has, by new name; `keys`: new name -> key in the file."""
    return {name: file[key] for name, key in keys.items() if key in file}
