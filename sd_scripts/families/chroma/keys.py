"""Chroma's file layouts: the original keys, which are FLUX.1's around an approximator, ComfyUI's and diffusers'."""

import re

from sd_scripts.families.flux import keys
from sd_scripts.library.files.state_dicts import State

APPROXIMATOR = "distilled_guidance_layer."
_RENAMED = {
    rf"({re.escape(APPROXIMATOR)}layers\.\d+)\.linear_1\.": r"\1.in_layer.",
    rf"({re.escape(APPROXIMATOR)}layers\.\d+)\.linear_2\.": r"\1.out_layer.",
    rf"({re.escape(APPROXIMATOR)}norms\.\d+|.+\.(?:query|key)_norm)\.weight": r"\1.scale",
}
"""Keys of diffusers' approximator, and of norms as ComfyUI may save them -> original keys."""


def original_layout(file: State) -> State:
    """Rename a transformer's tensors from any layout to the original keys. Tensors are taken out of `file`.

    Raises ValueError if a part of a matrix is missing.
    """
    file = keys.from_diffusers(file) if "x_embedder.weight" in file else file
    return {_original(key): file.pop(key) for key in list(file)}


def _original(key: str) -> str:
    for pattern, name in _RENAMED.items():
        key = re.sub(rf"^{pattern}", name, key)
    return key
