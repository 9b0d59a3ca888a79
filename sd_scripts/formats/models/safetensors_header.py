"""Read and fully validate the header of a .safetensors file, without torch and without reading weights."""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeGuard

from sd_scripts.formats.documents import check_name, parse_json

SAFETENSORS = (".safetensors", ".sft")
LARGEST_HEADER = 100_000_000
"""The maximum of the safetensors format."""
COMPILED = "_orig_mod."
"""Prefix that torch.compile left in the keys of some files; we strip it."""
MOST_DIMENSIONS = 64
"""PyTorch's maximum."""
BITS = {
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Bits per value of each dtype of the format."""
AGAIN = "download or copy it again"


@dataclass(frozen=True, kw_only=True)
class Header:
    """The header of a .safetensors file."""

    metadata: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    """F32, F16, BF16, F8_E4M3, ... by key."""
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The first byte of each tensor in the file, and the byte behind its last."""


def read_header(path: Path) -> Header:
    """Return the header. Raises ValueError, phrased to follow an option's name, for an invalid file; FileNotFoundError
    if there is none."""
    check_name(path)
    try:
        length, text, size = _read(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"'{path}' cannot be read: {error.strerror or error}") from None
    if len(text) < length:
        raise ValueError(f"'{path}' is cut short or damaged; {AGAIN}")
    header, whole = _parsed(path, text)
    if size < whole:
        raise ValueError(f"'{path}' is cut short: {size:,} of {whole:,} bytes; {AGAIN}")
    if size > whole:
        raise ValueError(f"'{path}' is damaged: it has {size:,} bytes, but its header describes {whole:,}; {AGAIN}")
    return header


def _read(path: Path) -> tuple[int, bytes, int]:
    """Return the declared header length, as much of the header as exists, and the file size."""
    size = path.stat().st_size
    if not path.is_file():
        raise ValueError(f"'{path}' is not a file")
    if not size:
        raise ValueError(f"'{path}' is empty; {AGAIN}")
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\xff"))
        if length > LARGEST_HEADER:
            raise ValueError(f"'{path}' is not a safetensors file; is it a web page, or a renamed .ckpt?")
        return length, file.read(length), size


@lru_cache(maxsize=16)  # every component of a checkpoint reads the header of the same file, and checks read it first
def _parsed(path: Path, text: bytes) -> tuple[Header, int]:
    """Return the header with this text, and how long the whole file must be."""
    try:
        entries = parse_json(text.decode())
    except ValueError:
        raise ValueError(f"'{path}' is cut short or damaged; {AGAIN}") from None
    if not isinstance(entries, dict):
        raise ValueError(f"'{path}' is damaged: its header is not a JSON object; {AGAIN}")
    metadata = entries.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError(f"'{path}' is damaged: its metadata is not a map of strings; {AGAIN}")
    end = _check_entries(path, entries)
    start = 8 + len(text)
    named = {key.replace(COMPILED, ""): entry for key, entry in entries.items()}
    header = Header(
        metadata=metadata,
        shapes={key: tuple(entry["shape"]) for key, entry in named.items()},
        dtypes={key: entry["dtype"] for key, entry in named.items()},
        spans={
            key: (start + first, start + stop)
            for key, entry in named.items()
            for first, stop in [entry["data_offsets"]]
        },
    )
    return header, start + end


def _check_entries(path: Path, entries: dict[str, Any]) -> int:
    """Return where the tensor data ends. Raises ValueError unless tensors are contiguous and each as long as its shape
    and dtype imply."""
    for key, entry in entries.items():
        if why := _entry_problem(entry):
            raise ValueError(f"'{path}' is damaged: the tensor {_short(key)} has {why}; {AGAIN}")
    end = 0
    for key, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        begin, after = entry["data_offsets"]
        if begin != end:
            what = "overlaps another one" if begin < end else "does not follow the one before it"
            raise ValueError(f"'{path}' is damaged: the tensor {_short(key)} {what}; {AGAIN}")
        end = after
    return end


def _entry_problem(entry: Any) -> str:
    """Return the problem of a tensor's entry, phrased to follow "has"; "" without one."""
    if not isinstance(entry, dict):
        return "no dtype, shape and offsets"
    dtype = entry.get("dtype")
    shape = entry.get("shape")
    offsets = entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        return f"the unknown dtype {_short(dtype)}"
    if not _are_sizes(shape) or len(shape) > MOST_DIMENSIONS or math.prod(size or 1 for size in shape) >= 2**63:
        return "an invalid shape"
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return "invalid offsets"
    if math.prod(shape) * BITS[dtype] != 8 * (offsets[1] - offsets[0]):
        return "a shape that does not match its data"
    return ""


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(each) is int and 0 <= each < 2**63 for each in value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
