"""Read weights from .safetensors, .ckpt and .pt files; whatever is wrong with a file is said in one sentence."""

import pickle
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

COMPILED = "_orig_mod."
"""What torch.compile put into the keys of some files written elsewhere."""


def read_weights(path: Path, option: str, *, mmap: bool = True) -> dict[str, Tensor]:
    """All tensors of a file, by key, on the CPU; with `mmap` they are read from disk when first used.

    Raises ValueError, which names `option`, if the file is not there, not whole or not a file of weights.
    """
    _must_exist(path, option)
    if path.suffix != ".safetensors":
        state = _read_pickle(path, option)
    elif mmap:
        with _open(path, option) as file:
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118, not a dict
    else:
        try:
            state = safetensors.torch.load(path.read_bytes())
        except SafetensorError as error:
            raise ValueError(_not_whole(path, option, error)) from None
    return {key.replace(COMPILED, ""): tensor for key, tensor in state.items()}


def read_shapes(path: Path, option: str) -> dict[str, tuple[int, ...]]:
    """Shapes by key. Of a .safetensors file only the header is read."""
    if path.suffix != ".safetensors":
        return {key: tuple(tensor.shape) for key, tensor in read_weights(path, option).items()}
    _must_exist(path, option)
    with _open(path, option) as file:
        keys = {key: key.replace(COMPILED, "") for key in file.keys()}  # noqa: SIM118
        return {name: tuple(file.get_slice(key).get_shape()) for key, name in keys.items()}


def _must_exist(path: Path, option: str) -> None:
    if not path.is_file():
        raise ValueError(f"{option}: there is no file '{path}'")


def _open(path: Path, option: str) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(_not_whole(path, option, error)) from None


def _not_whole(path: Path, option: str, error: Exception) -> str:
    if "not fully covered" in str(error) or "incomplete" in str(error):
        return f"{option}: '{path}' is cut short ({path.stat().st_size:,} bytes); download or copy it again"
    return f"{option}: '{path}' is not a safetensors file; is it a web page or a .ckpt with a wrong name?"


def _read_pickle(path: Path, option: str) -> dict[str, Tensor]:
    """A .ckpt can run code when it is unpickled: only tensors are let through."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    except pickle.UnpicklingError:
        raise ValueError(
            f"{option}: '{path}' holds more than weights, which could run code; convert it to .safetensors"
        ) from None
    except (RuntimeError, EOFError, OSError):
        raise ValueError(f"{option}: '{path}' is not a whole file of weights; download or copy it again") from None
    state = state.get("state_dict", state) if isinstance(state, dict) else {}
    return {key: tensor for key, tensor in state.items() if isinstance(tensor, Tensor)}


def _is_zip(path: Path) -> bool:
    """Only the zip format of torch.save, the usual one since 2020, can be read from disk on use."""
    with path.open("rb") as file:
        return file.read(2) == b"PK"
