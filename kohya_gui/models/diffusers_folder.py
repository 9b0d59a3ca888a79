"""A whole model on the Hub, which is a diffusers folder: the files of its components that training reads."""

import re
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Any

from sd_scripts.runs.outputs import DIFFUSERS_MARK

CONFIGURATION = (".json", ".txt", ".model", ".jinja")
WHOLE = re.compile(r"(?:diffusion_pytorch_)?model\.safetensors")
SHARD = re.compile(r"(?:diffusion_pytorch_)?model-\d{5}-of-\d{5}\.safetensors")
SAFE = re.compile(r"\w[\w.+-]{0,100}(?:/\w[\w.+-]{0,100})?")
"""A path that stays within its folder on each system."""


def parts_of(names: Collection[str], index: Mapping[str, Any]) -> list[str]:
    """Return the files of the components that model_index.json lists: configuration, and weights in the precision
    without a variant; empty if a component has weights in other formats or variants only."""
    listed = {name for name, kind in index.items() if isinstance(kind, list) and all(isinstance(k, str) for k in kind)}
    chosen = [DIFFUSERS_MARK]
    for component in sorted(listed):
        files = [name for name in names if PurePosixPath(name).parent.as_posix() == component]
        whole = [name for name in files if WHOLE.fullmatch(PurePosixPath(name).name)]
        shards = [name for name in files if SHARD.fullmatch(PurePosixPath(name).name)]
        has_weights = any(name.endswith((".safetensors", ".bin", ".msgpack")) for name in files)
        if not files or (has_weights and not whole and not shards):
            return []
        chosen += [*(name for name in files if name.endswith(CONFIGURATION)), *(whole or shards)]
    return chosen if len(chosen) > 1 and all(map(SAFE.fullmatch, chosen)) else []
