"""Keys of a transformer in the layout of its checkpoints and in diffusers', as tables of names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sd_scripts.library.files.state_dicts import State

Names = Mapping[str, str | tuple[str, ...]]
"""Module, or parameter of its own, in the original layout -> in diffusers; several are the modules that its rows are
from, in order."""
_NUMBERED = re.compile(r"(.+?)\.(\d+)\.(.+)")
"""List, number and inner name: `double_blocks`, `3`, `img_attn.qkv.weight`."""


@dataclass(frozen=True, kw_only=True)
class KeyTables:
    """The names of a transformer's tensors. They are for any width and depth."""

    blocks: tuple[tuple[str, str, Names], ...]
    """Lists of blocks: the list's name, its name in diffusers, and the names within a block."""
    ends: Names
    """Names outside of the blocks."""
    swapped: str = ""
    """Module whose rows have shift before scale in the original layout, and scale before shift in diffusers."""
    scales: tuple[str, ...] = ()
    """Ends of the names of norms whose weight is called scale in the original layout."""

    def diffusers_modules(self, module: str) -> tuple[str, ...]:
        """Return diffusers' names of a module's parts, in the order of its rows.

        `double_blocks.3.txt_attn.proj` -> (`transformer_blocks.3.attn.to_add_out`,). Raises KeyError for an unknown
        name.
        """
        block = _NUMBERED.fullmatch(module)
        for ours, theirs, names in self.blocks:
            if block and block[1] == ours:
                return tuple(f"{theirs}.{block[2]}.{part}" for part in _parts(names[block[3]]))
        return _parts(self.ends[module])

    def swaps_halves(self, module: str) -> bool:
        """Return whether diffusers has the two halves of a module's rows in the opposite order."""
        return module == self.swapped

    def original_key(self, key: str) -> tuple[int, str]:
        """Return the number of the part and the original key for a key of diffusers.

        `single_transformer_blocks.2.proj_mlp.bias` -> (3, `single_blocks.2.linear1.bias`). Raises KeyError for an
        unknown key.
        """
        block = _NUMBERED.fullmatch(key)
        for ours, theirs, _ in self.blocks:
            if block and block[1] == theirs:
                number, inner = self._original(theirs, block[3])
                return number, f"{ours}.{block[2]}.{inner}"
        return self._original("", key)

    def part_of(self, module: str) -> tuple[str, int, int]:
        """Return the original module that contains a module of diffusers, the number of the part, and the number of
        parts; any other module contains itself."""
        try:
            part, key = self.original_key(f"{module}.weight")
        except KeyError:
            return module, 0, 1
        whole = key.rpartition(".")[0]
        return whole, part, len(self.diffusers_modules(whole))

    def from_diffusers(self, state: State) -> State:
        """Rename tensors from diffusers' keys to the original ones, leaving other keys unchanged. Tensors are taken out
        of `state`, so that parts of a matrix can be freed once they are joined.

        Raises ValueError if a part of a matrix is missing.
        """
        parts: dict[str, dict[int, Tensor]] = {}
        ours: State = {}
        for name in list(state):
            try:
                number, key = self.original_key(name)
            except KeyError:
                ours[name] = state.pop(name)
                continue
            pieces = parts.setdefault(key, {})
            pieces[number] = state.pop(name)
            if len(pieces) == len(self._diffusers_keys(key)):
                ours[key] = self._joined(key, parts.pop(key))
        return ours | {key: self._joined(key, pieces) for key, pieces in parts.items()}

    @cached_property
    def _places(self) -> dict[str, dict[str, tuple[int, str]]]:
        """Diffusers' name of a list of blocks, or "" -> names in diffusers, each with the number of the part and the
        original name."""
        tables = {theirs: names for _, theirs, names in self.blocks} | {"": self.ends}
        return {
            theirs: {part: (number, name) for name, parts in names.items() for number, part in enumerate(_parts(parts))}
            for theirs, names in tables.items()
        }

    def _original(self, blocks: str, key: str) -> tuple[int, str]:
        places = self._places[blocks]
        if key in places:
            return places[key]
        module, _, kind = key.rpartition(".")
        number, name = places[module]
        return number, f"{name}.{'scale' if name.endswith(self.scales) else kind}"

    def _diffusers_keys(self, key: str) -> tuple[str, ...]:
        """Return diffusers' keys of the parts of a tensor."""
        try:
            return self.diffusers_modules(key)
        except KeyError:
            module, _, kind = key.rpartition(".")
            return tuple(f"{part}.{kind}" for part in self.diffusers_modules(module))

    def _joined(self, key: str, pieces: dict[int, Tensor]) -> Tensor:
        names = self._diffusers_keys(key)
        for number, name in enumerate(names):
            if number not in pieces:
                raise ValueError(f"'{name}' is missing")
        if self.swaps_halves(key.rpartition(".")[0]):
            return torch.cat(pieces[0].chunk(2)[::-1])
        return torch.cat([pieces[number] for number in range(len(names))]) if len(names) > 1 else pieces[0]


def _parts(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names
