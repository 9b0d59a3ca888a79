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
    """The tensors in the order of the file, each in memory of its own, so that it can be freed alone."""
    state = {}
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        entries = parse_json(file.read(length))
        entries.pop("__metadata__", None)
        for key, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
            if not key.replace(COMPILED, "").startswith(prefix):
                continue
            begin, end = entry["data_offsets"]
            data = _read_bytes(file, 8 + length + begin, end - begin, mmap=mmap)
            dtype = DTYPES.get(entry["dtype"])
            state[key] = data if dtype is None else data.view(dtype).view(entry["shape"])
    return state


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
