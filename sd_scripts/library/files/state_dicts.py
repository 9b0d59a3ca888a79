"""State dicts: types, and reading sizes from the shapes of a file."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
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


@dataclass(frozen=True, kw_only=True)
class JoinedLayout:
    """A layout with matrices whose rows diffusers stores in several tensors."""

    place: Callable[[str], tuple[int, str]]
    """Key of diffusers -> the number of the part and the key here; raises KeyError for one that has the same name."""
    modules: Callable[[str], Sequence[str]]
    """Module here -> the modules of diffusers that its rows are from, in order."""
    swaps_halves: Callable[[str], bool]
    """Module here -> whether diffusers has the two halves of its rows the other way round."""

    def from_diffusers(self, state: State) -> State:
        """Rename tensors from diffusers' keys to those of this layout, leaving other keys unchanged. Tensors are taken
        out of `state`, so that parts of a matrix can be freed once they are joined.

        Raises ValueError if a part of a matrix is missing.
        """
        parts: dict[str, dict[int, Tensor]] = {}
        ours: State = {}
        for name in list(state):
            try:
                index, key = self.place(name)
            except KeyError:
                ours[name] = state.pop(name)
                continue
            pieces = parts.setdefault(key, {})
            pieces[index] = state.pop(name)
            if len(pieces) == len(self.modules(key.rpartition(".")[0])):
                ours[key] = self._joined(key, parts.pop(key))
        return ours | {key: self._joined(key, pieces) for key, pieces in parts.items()}

    def _joined(self, key: str, pieces: dict[int, Tensor]) -> Tensor:
        module, _, kind = key.rpartition(".")
        names = self.modules(module)
        for index, name in enumerate(names):
            if index not in pieces:
                raise ValueError(f"'{name}.{kind}' is missing")
        if self.swaps_halves(module):
            return torch.cat(pieces[0].chunk(2)[::-1])
        return torch.cat([pieces[index] for index in range(len(names))]) if len(names) > 1 else pieces[0]
