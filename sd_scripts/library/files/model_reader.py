"""Read weights from .safetensors, .ckpt and .pt files; every fault of a file is reported in one sentence."""

import pickle
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from sd_scripts.formats.models.safetensors_header import COMPILED, SAFETENSORS, Header, read_header


def read_weights(
    path: Path, option: str, *, mmap: bool = True, prefix: str | tuple[str, ...] = ""
) -> dict[str, Tensor]:
    """Return a file's tensors whose keys begin with `prefix`, or one of several, on the CPU; with `mmap` they are read
    when first used.

    Raises ValueError naming `option` if the file is missing, incomplete or not a weights file.
    """
    if path.suffix in SAFETENSORS:
        header = header_at(path, option)  # raises if the file is damaged
        try:
            return _read_safetensors(path, header, prefix, mmap=mmap)
        except (ValueError, RuntimeError, OSError) as error:
            raise ValueError(f"{option}: '{path}' cannot be read: {error}") from None
    return {key.replace(COMPILED, ""): tensor for key, tensor in _read_pickle(path, option).items()}


MAPPED, MAPPINGS = 2**26, 256
"""Minimum bytes of a mapping, maximum mappings of a file: each keeps a file open, and a process may open about
1,000."""

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
"""Names of dtypes in .safetensors files, in the order in which the files store them."""


def read_empty(path: Path, option: str) -> dict[str, Tensor]:
    """Read as read_weights does, but as meta tensors; of a .safetensors file only the header is read.

    Unknown dtypes, such as packed 4-bit ones, become int8.
    """
    if path.suffix not in SAFETENSORS:
        return {key: tensor.to("meta") for key, tensor in read_weights(path, option).items()}
    header = header_at(path, option)
    return {
        key: torch.empty(shape, dtype=DTYPES.get(header.dtypes[key], torch.int8), device="meta")
        for key, shape in header.shapes.items()
    }


def header_at(path: Path, option: str) -> Header:
    """Return the header of a .safetensors file. Raises ValueError naming `option` if it is missing or damaged."""
    try:
        return read_header(path)
    except FileNotFoundError:
        raise ValueError(f"{option}: file not found: '{path}'") from None
    except ValueError as problem:
        raise ValueError(f"{option}: {problem}") from None


def _read_safetensors(path: Path, header: Header, prefix: str | tuple[str, ...], *, mmap: bool) -> dict[str, Tensor]:
    """Return the tensors in the order of the file. With `mmap`, neighbours share a mapping, which is freed with the
    last of them; otherwise each tensor has its own memory."""
    state: dict[str, Tensor] = {}
    spans = {key: span for key, span in header.spans.items() if key.startswith(prefix)}
    with path.open("rb") as file:
        for group in _groups(spans, max(MAPPED, path.stat().st_size // MAPPINGS) if mmap else 0):
            start, stop = spans[group[0]][0], spans[group[-1]][1]
            data = _read_bytes(file, start, stop - start, mmap=mmap)
            for key in group:
                begin, end = (offset - start for offset in spans[key])
                dtype = DTYPES.get(header.dtypes[key])
                tensor = data[begin:end].clone() if dtype and begin % dtype.itemsize else data[begin:end]
                shaped = tensor.view(dtype).view(header.shapes[key]) if dtype else tensor
                state[key] = shaped.data  # views share a version: to autograd, an update of one would change all
    return state


def _groups(spans: dict[str, tuple[int, int]], size: int) -> list[list[str]]:
    """Group the keys in the order of the file; a group's keys start within `size` bytes."""
    groups: list[list[str]] = []
    for key in sorted(spans, key=lambda key: spans[key]):
        if not groups or spans[key][0] >= spans[groups[-1][0]][0] + size:
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
    """Read a pickle file without running code that it contains: only tensors are unpickled."""
    if path.suffix == ".gguf":
        raise ValueError(f"{option}: '{path}' is quantized for inference; choose the .safetensors file of the model")
    if path.exists() and not path.is_file():  # reading a pipe would block
        raise ValueError(f"{option}: '{path}' is not a file")
    try:
        state: Any = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )  # torch maps only its zip format
    except pickle.UnpicklingError:
        raise ValueError(
            f"{option}: '{path}' contains more than weights and could run code; convert it to .safetensors"
        ) from None
    except FileNotFoundError:
        raise ValueError(f"{option}: file not found: '{path}'") from None
    except Exception:  # a damaged file fails anywhere in the unpickler
        raise ValueError(f"{option}: '{path}' is not a complete weights file; download or copy it again") from None
    state = state.get("state_dict", state.get("module", state)) if isinstance(state, dict) else {}  # or DeepSpeed's
    return {key: tensor for key, tensor in state.items() if isinstance(tensor, Tensor)}
