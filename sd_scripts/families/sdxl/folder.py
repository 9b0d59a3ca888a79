"""SDXL's components in a diffusers folder, under all tensor names that diffusers has used over the years."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from diffusers import ModelMixin

from sd_scripts.families.components import WeightSource
from sd_scripts.families.loading import files_in, require_matching_shapes, shapes_of
from sd_scripts.library.model_reader import read_weights
from sd_scripts.library.state_dicts import State

FORMER = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
"""Names in the VAE's attention before diffusers 0.13."""


def open_component(
    kind: Any, folder: Path, option: str, dtype: torch.dtype, device: torch.device | str
) -> WeightSource:
    """A diffusers or transformers module. Raises ValueError, one sentence that names `option`, if incomplete."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"{option}: '{folder}' is incomplete; missing: 'config.json'")
    with _told_as_incomplete(option, folder), init_empty_weights():
        empty = _make_empty(kind, folder)

    def read() -> State:
        if not any(folder.glob("*.safetensors")):  # a pickle is left to the library
            with _told_as_incomplete(option, folder):
                return kind.from_pretrained(folder, local_files_only=True).state_dict()
        expected = empty.state_dict()
        state = read_component(folder, expected, option)
        require_matching_shapes(shapes_of(state), expected, option, folder, "SDXL model")
        return state

    return WeightSource(empty=empty, read=read, dtype=dtype, device=device)


@contextmanager
def _told_as_incomplete(option: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise ValueError(f"{option}: '{folder}' is incomplete: {str(error).strip().splitlines()[0]}") from None


def vae_folder(folder: Path) -> Path:
    """Return the VAE's folder within a complete model, or the folder of a VAE itself."""
    return folder / "vae" if (folder / "vae").is_dir() else folder


def _make_empty(kind: Any, folder: Path) -> Any:
    if issubclass(kind, ModelMixin):
        return kind.from_config(kind.load_config(folder, local_files_only=True))
    return kind(kind.config_class.from_pretrained(folder, local_files_only=True))


def read_component(folder: Path, names: State, option: str) -> State:
    """Read the tensors of `names` that a folder contains. Raises ValueError if it contains no weights."""
    state = {key: tensor for file in files_in(folder, option) for key, tensor in read_weights(file, option).items()}
    ours = {_name_now(key, names): tensor for key, tensor in state.items()}
    return {name: tensor for name, tensor in ours.items() if name in names}


def _name_now(key: str, names: State) -> str:
    """transformers 4 wrote `text_model.` before the names of the first text encoder too."""
    key = re.sub(r"(attentions\.0\.)(query|key|value|proj_attn)\b", lambda found: found[1] + FORMER[found[2]], key)
    return key if key in names else key.removeprefix("text_model.")
