"""Read and write .safetensors files tensor by tensor, so that no model need fit into memory."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from sd_scripts.formats.atomic_files import atomic_file
from sd_scripts.formats.disk import saving
from sd_scripts.formats.models.safetensors_header import BITS, SAFETENSORS, Header
from sd_scripts.library.files.model_reader import DTYPES, header_at, read_weights

PIECE = 1 << 24
"""Bytes that are copied at a time."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ORDER = [*DTYPES, *(name for name in BITS if name not in DTYPES)]
"""Dtypes in the order in which files store their tensors: wide ones first, so that each tensor is aligned."""


@dataclass(frozen=True)
class TensorSpec:
    """Dtype, as the format names it, and shape of a tensor to be written."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor, dtype: torch.dtype | None = None) -> TensorSpec:
        """Describe a tensor; if it is floating-point, in `dtype`."""
        return cls(NAMES[dtype if dtype and tensor.is_floating_point() else tensor.dtype], tuple(tensor.shape))

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * BITS[self.dtype] // 8


def header_of(specs: Mapping[str, TensorSpec], metadata: Mapping[str, str]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Return the first bytes of a file, as the safetensors library writes them, and the span of each tensor in it, in
    the order of the file."""
    order = sorted(specs, key=lambda key: (ORDER.index(specs[key].dtype), key.encode()))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for key in order:
        begin, end = end, end + specs[key].nbytes
        header[key] = {"dtype": specs[key].dtype, "shape": list(specs[key].shape), "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    text += b" " * (-len(text) % 8)
    first = struct.pack("<Q", len(text)) + text
    spans = {key: header[key]["data_offsets"] for key in order}
    return first, {key: (len(first) + begin, len(first) + end) for key, (begin, end) in spans.items()}


class TensorFile:
    """A weights file that is read one tensor at a time. A .ckpt or .pt is mapped into memory instead."""

    def __init__(self, path: Path, option: str):
        """Raises ValueError, one sentence that names the option, if the file is missing or damaged."""
        self.path = path
        self.option = option
        self._state: dict[str, Tensor] = {}
        self._file: BinaryIO | None = None
        if path.suffix in SAFETENSORS:
            self.header = header_at(path, option)
            self._file = path.open("rb")
        else:
            self._state = read_weights(path, option)
            self.header = Header(
                metadata={},
                shapes={key: tuple(tensor.shape) for key, tensor in self._state.items()},
                dtypes={key: NAMES[tensor.dtype] for key, tensor in self._state.items()},
            )

    def spec(self, key: str) -> TensorSpec:
        return TensorSpec(self.header.dtypes[key], self.header.shapes[key])

    def read(self, key: str) -> Tensor:
        """Return a tensor in memory of its own."""
        spec = self.spec(key)
        if self._file is None:
            return self._state[key].clone()
        data = torch.empty(spec.nbytes, dtype=torch.uint8)
        self._file.seek(self.header.spans[key][0])
        self._file.readinto(data.numpy())  # type: ignore[attr-defined]
        dtype = DTYPES.get(spec.dtype)
        return data.view(dtype).view(spec.shape) if dtype else data

    def pieces(self, key: str) -> Iterator[bytes]:
        """Yield the bytes of a tensor, a piece at a time."""
        if self._file is None:
            yield bytes_of(self._state[key].contiguous())
            return
        begin, end = self.header.spans[key]
        self._file.seek(begin)
        while begin < end:
            piece = self._file.read(min(PIECE, end - begin))
            if not piece:
                raise OSError(f"'{self.path}' was truncated while being read")
            begin += len(piece)
            yield piece

    def close(self) -> None:
        if self._file:
            self._file.close()


def bytes_of(tensor: Tensor) -> Any:
    """Return the memory of a contiguous tensor on the CPU."""
    return tensor.flatten().view(torch.uint8).numpy().data


class TensorWriter:
    """Fills a file whose tensors are all known beforehand, in any order."""

    def __init__(self, file: BinaryIO, specs: Mapping[str, TensorSpec], metadata: Mapping[str, str]):
        self.specs = specs
        self._file = file
        first, self._spans = header_of(specs, metadata)
        self.left = set(specs)
        """Keys that are not written yet."""
        file.write(first)
        file.truncate(max((end for _, end in self._spans.values()), default=len(first)))

    def write(self, key: str, tensor: Tensor) -> None:
        """Write a tensor, cast to the dtype of its spec."""
        spec = self.specs[key]
        assert tuple(tensor.shape) == spec.shape, f"{key}: {tuple(tensor.shape)} is not {spec.shape}"
        self._put(key, [bytes_of(tensor.detach().to(DTYPES[spec.dtype]).cpu().contiguous())])

    def copy(self, key: str, source: TensorFile) -> None:
        """Write a tensor from another file unchanged, whatever its dtype."""
        assert source.spec(key) == self.specs[key], key
        self._put(key, source.pieces(key))

    def _put(self, key: str, pieces: Iterable[Any]) -> None:
        begin, end = self._spans[key]
        self._file.seek(begin)
        for piece in pieces:
            self._file.write(piece)
        assert self._file.tell() == end, key
        self.left.discard(key)


@contextmanager
def tensor_writer(path: Path, specs: Mapping[str, TensorSpec], metadata: Mapping[str, str]) -> Iterator[TensorWriter]:
    """Yield a writer; at the end of the block the file appears under its name, complete, or not at all.

    Raises OSError with one sentence if it cannot be written; an existing file is then unchanged.
    """
    with saving(path), atomic_file(path) as part, part.open("wb") as file:
        writer = TensorWriter(file, specs, metadata)
        yield writer
        assert not writer.left, f"not written: {sorted(writer.left)[:3]}"
