"""Chroma's file layouts: the original keys, which are FLUX.1's around an approximator, ComfyUI's and diffusers'."""

import re

from sd_scripts.families.flux import keys
from sd_scripts.library.files.state_dicts import State

APPROXIMATOR = "distilled_guidance_layer."
_LAYERS = {"in_layer": "linear_1", "out_layer": "linear_2"}
"""Layers of the approximator's MLPs -> diffusers' names."""
_NORM = re.compile(rf"({re.escape(APPROXIMATOR)}norms\.\d+|.+\.(?:query|key)_norm)\.weight")
"""Norms as diffusers names the approximator's, and as ComfyUI may save all of them."""


def diffusers_modules(module: str) -> tuple[str, ...]:
    """Return diffusers' names of a module's parts, as of FLUX.1. Raises KeyError for any other name."""
    if not module.startswith(APPROXIMATOR):
        return keys.diffusers_modules(module)
    start, _, last = module.rpartition(".")
    return (f"{start}.{_LAYERS.get(last, last)}",)


def original_layout(file: State) -> State:
    """Rename a transformer's tensors from any layout to the original keys. Tensors are taken out of `file`.

    Raises ValueError if a part of a matrix is missing.
    """
    file = keys.from_diffusers(file)
    return {_original(key): file.pop(key) for key in list(file)}


def _original(key: str) -> str:
    for ours, theirs in _LAYERS.items():
        if key.startswith(APPROXIMATOR):
            key = key.replace(f".{theirs}.", f".{ours}.")
    return re.sub(_NORM, r"\1.scale", key)
