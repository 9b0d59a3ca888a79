"""Z-Image's file layouts: the original single file's, with fused queries, keys and values, and diffusers'."""

import re

from sd_scripts.library.files.state_dicts import State

_RENAMED = (
    (re.compile(r"^(x_embedder|final_layer)\."), r"all_\1.2-1."),
    (re.compile(r"\.attention\.out\."), ".attention.to_out.0."),
    (re.compile(r"\.attention\.([qk])_norm\."), r".attention.norm_\1."),
)
_FUSED = ".attention.qkv."
_PROJECTIONS = ("to_q", "to_k", "to_v")
UNUSED = "norm_final.weight"
"""In some single files; nothing reads it."""


def to_diffusers(file: State) -> State:
    """Return a transformer's tensors under diffusers' keys, from either layout. Raises ValueError if rows are missing.

    Parts of a fused matrix are views of it.
    """
    state: State = {}
    for key, tensor in file.items():
        if key == UNUSED:
            continue
        if _FUSED in key:
            if len(tensor) % len(_PROJECTIONS):
                raise ValueError(f"'{key}' has {len(tensor)} rows, which are not equal parts for q, k and v")
            for name, part in zip(_PROJECTIONS, tensor.chunk(len(_PROJECTIONS)), strict=True):
                state[key.replace(_FUSED, f".attention.{name}.")] = part
            continue
        for pattern, name in _RENAMED:
            key = pattern.sub(name, key)
        state[key] = tensor
    return state


def part_of(module: str) -> tuple[str, int, int]:
    """Return the original module that contains a module of diffusers, the number of the part, and the number of parts;
    any other module contains itself."""
    block, _, name = module.rpartition(".attention.")
    if name in _PROJECTIONS:
        return f"{block}{_FUSED}".removesuffix("."), _PROJECTIONS.index(name), len(_PROJECTIONS)
    return (f"{block}.attention.out" if name == "to_out.0" else module), 0, 1
