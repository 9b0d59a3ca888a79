"""Read weights from .safetensors, .ckpt and .pt files; whatever is wrong with a file is said in one sentence."""

import pickle
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from sd_scripts.families.model_file import COMPILED, SAFETENSORS, Header, read_header
from sd_scripts.formats.documents import parse_json


def read_weights(path: Path, option: str, *, mmap: bool = True, prefix: str = "") -> dict[str, Tensor]:
    """All tensors of a file whose keys begin with `prefix`, by key, on the CPU; with `mmap` they are read from disk
    when first used.

    Raises ValueError, which names `option`, if the file is not there, not whole or not a file of weights.
    """
    if path.suffix in SAFETENSORS:
        _header(path, option)  # says in one sentence what is wrong with the file
        try:
            state = _read_safetensors(path, prefix, mmap=mmap)
        except (KeyError, ValueError, RuntimeError, OSError) as error:
            raise ValueError(f"{option}: '{path}' cannot be read: {error}") from None
    else:
        state = _read_pickle(path, option)
    return {key.replace(COMPILED, ""): tensor for key, tensor in state.items()}


def read_shapes(path: Path, option: str) -> dict[str, tuple[int, ...]]:
    """Shapes by key; of a .safetensors file only the header is read."""
    if path.suffix in SAFETENSORS:
        return dict(_header(path, option).shapes)
    return {key: tuple(tensor.shape) for key, tensor in read_weights(path, option).items()}


MAPPED, MAPPINGS = 2**26, 256
"""Bytes of a mapping at least, and mappings of a file at most: each holds an open file, of which a process may have
about 1,000."""

DTYPES = {
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""How a .safetensors file names the kinds of numbers, in the order in which it holds them."""


def read_empty(path: Path, option: str) -> dict[str, Tensor]:
    """As read_weights, but tensors without memory; of a .safetensors file only the header is read.

    Kinds of numbers that are not known, such as packed ones of 4 bits, are told as int8.
    """
    if path.suffix not in SAFETENSORS:
        return {key: tensor.to("meta") for key, tensor in read_weights(path, option).items()}
    header = _header(path, option)
    return {
        key: torch.empty(shape, dtype=DTYPES.get(header.dtypes[key], torch.int8), device="meta")
        for key, shape in header.shapes.items()
    }


def _header(path: Path, option: str) -> Header:
    try:
        return read_header(path)
    except FileNotFoundError:
        raise ValueError(f"{option}: there is no file '{path}'") from None
    except ValueError as problem:
        raise ValueError(f"{option}: {problem}") from None


def _read_safetensors(path: Path, prefix: str, *, mmap: bool) -> dict[str, Tensor]:
    """The tensors in the order of the file. Those that are mapped share a mapping with few others, which is freed with
    the last of them; those that are read are each in memory of its own."""
    state: dict[str, Tensor] = {}
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        entries = parse_json(file.read(length))
        entries.pop("__metadata__", None)
        offsets = {key: each["data_offsets"] for key, each in entries.items()}
        wanted = [key for key in entries if key.replace(COMPILED, "").startswith(prefix)]
        for group in _groups(offsets, wanted, max(MAPPED, path.stat().st_size // MAPPINGS) if mmap else 0):
            start, stop = offsets[group[0]][0], offsets[group[-1]][1]
            data = _read_bytes(file, 8 + length + start, stop - start, mmap=mmap)
            for key in group:
                begin, end = (offset - start for offset in offsets[key])
                dtype = DTYPES.get(entries[key]["dtype"])
                tensor = data[begin:end].clone() if dtype and begin % dtype.itemsize else data[begin:end]
                shaped = tensor.view(dtype).view(entries[key]["shape"]) if dtype else tensor
                state[key] = shaped.data  # views share a version: to autograd, an update of one would change all
    return state


def _groups(offsets: dict[str, list[int]], keys: list[str], size: int) -> list[list[str]]:
    """Return the keys in the order of the file, those together that begin within `size` bytes."""
    groups: list[list[str]] = []
    for key in sorted(keys, key=lambda key: offsets[key]):
        if not groups or offsets[key][0] >= offsets[groups[-1][0]][0] + size:
            groups.append([])
        groups[-1].append(key)
    return groups


def _read_bytes(file: BinaryIO, start: int, size: int, *, mmap: bool) -> Tensor:
    if mmap and size:
        return torch.from_numpy(np.memmap(file, np.uint8, "c", start, (size,)))
    data = torch.empty(size, dtype=torch.uint8)
    file.seek(start)
    file.readinto(data.numpy())  # type: ignore[attr-defined]
    return data


def _read_pickle(path: Path, option: str) -> dict[str, Tensor]:
    """A .ckpt can run code when it is unpickled: only tensors are let through."""
    if path.suffix == ".gguf":
        raise ValueError(f"{option}: '{path}' is quantized for inference; choose the .safetensors file of the model")
    if path.exists() and not path.is_file():  # reading a pipe would wait for ever
        raise ValueError(f"{option}: '{path}' is not a file")
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    except pickle.UnpicklingError:
        raise ValueError(
            f"{option}: '{path}' contains more than weights and could run code; convert it to .safetensors"
        ) from None
    except FileNotFoundError:
        raise ValueError(f"{option}: there is no file '{path}'") from None
    except Exception:  # what is no pickle, or half of one, fails at any place of the unpickler
        raise ValueError(f"{option}: '{path}' is not a complete weights file; download or copy it again") from None
    state = state.get("state_dict", state) if isinstance(state, dict) else {}
    return {key: tensor for key, tensor in state.items() if isinstance(tensor, Tensor)}


def _is_zip(path: Path) -> bool:
    """Only the zip format of torch.save, the usual one since 2020, can be read from disk on use."""
    with path.open("rb") as file:
        return file.read(2) == b"PK"
