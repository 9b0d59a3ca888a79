"""Read and write cache files: atomic writes, one error type for damage, and digests for cache keys.

We write safetensors with the cache key of each entry in the metadata; a key that differs means a rebuild. We read the
npz files of other trainers too, which have none.
"""

import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sd_scripts.data.caches.caching import SUFFIX
from sd_scripts.data.sources.images import is_converted
from sd_scripts.formats.atomic_files import atomic_file
from sd_scripts.formats.clips.clip_files import frame_files, is_clip
from sd_scripts.formats.disk import FULL
from sd_scripts.library.files.model_reader import DTYPES
from sd_scripts.library.files.safetensors_io import on_cpu, write_tensors

CACHE_KEY, CHECKSUM = "cache_key", "crc32."
PIECES, PIECE_BYTES = 4, 65536
NPY_TYPE = re.compile(r"'descr':\s*'([<>|=]?[a-zA-Z]\d*)'")
NPY_ORDER = re.compile(r"'fortran_order':\s*(True|False)")
NPY_SHAPE = re.compile(r"'shape':\s*\(([\d, ]*)\)")


def write_cache(path: Path, tensors: Mapping[str, Tensor], cache_keys: Mapping[str, str], *, option: str) -> None:
    """Write a safetensors file atomically, in the dtypes of the tensors. Its metadata contains the cache keys and the
    checksums of the tensors. Raise OSError with one sentence, which names the `option` that asks for the file, if it
    cannot be written."""
    checksums = {f"{CHECKSUM}{name}": _checksum(_bytes_of(tensor)) for name, tensor in tensors.items()}
    try:
        with atomic_file(path) as part:
            write_tensors(part, tensors, {**cache_keys, **checksums})
    except OSError as error:
        full = error.errno in FULL
        why = "the disk is full" if full else error.strerror or error
        remedy = "free some space" if full else "check its folder"
        raise OSError(f"{option}: '{path}' cannot be written ({why}); {remedy}, or turn the option off") from error


def _checksum(content: bytearray | memoryview) -> str:
    return f"{zlib.crc32(content):08x}"


def _bytes_of(tensor: Tensor) -> memoryview:
    return on_cpu(tensor).flatten().view(torch.uint8).numpy().data


class DamagedCache(ValueError):
    """Raised for an unusable cache file; the message names the file and the reason."""

    def __init__(self, path: Path, why: object):
        super().__init__(f"{path} is damaged: {why}")
        self.why = why


class CacheFile(Mapping[str, Tensor]):
    """The tensors of a cache file, each read and checked against its checksum on access."""

    def cache_key(self, size: str = "") -> str | None:
        """Return the cache key of the entry whose names end with `size`; None if a different program wrote it."""
        return None


class _Safetensors(CacheFile):
    def __init__(self, file: BinaryIO):
        length = int.from_bytes(file.read(8), "little")
        self._entries = json.loads(file.read(length))
        self._metadata: dict[str, str] = self._entries.pop("__metadata__", {})
        self._file = file
        self._start = 8 + length

    def __getitem__(self, name: str) -> Tensor:
        entry = self._entries[name]
        begin, end = entry["data_offsets"]
        self._file.seek(self._start + begin)
        content = bytearray(self._file.read(end - begin))
        if _checksum(content) != self._metadata.get(CHECKSUM + name):
            raise ValueError("its content does not match its checksum")
        return torch.frombuffer(content, dtype=DTYPES[entry["dtype"]]).view(entry["shape"])

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def cache_key(self, size: str = "") -> str | None:
        return self._metadata.get(CACHE_KEY + size)


class _Npz(CacheFile):
    def __init__(self, archive: zipfile.ZipFile):
        self._archive = archive
        self._names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]

    def __getitem__(self, name: str) -> Tensor:
        array = _parse_npy(self._archive.read(f"{name}.npy"))  # which checks its checksum
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names


def _parse_npy(content: bytes) -> NDArray[Any]:
    """Parse an array of numbers or text in NumPy's npy format; raise ValueError for anything else.

    NumPy's own reader parses headers with `ast`, which sometimes fails in several threads at the same time
    (SystemError: AST constructor recursion depth mismatch, CPython 3.11).
    """
    if content[:6] != b"\x93NUMPY":
        raise ValueError("it contains something other than arrays")
    width = 2 if content[6] == 1 else 4
    start = 8 + width
    end = start + int.from_bytes(content[8:start], "little")
    header = content[start:end].decode("latin-1")
    found = [pattern.search(header) for pattern in (NPY_TYPE, NPY_ORDER, NPY_SHAPE)]
    if not all(found):
        raise ValueError("it contains arrays of an unsupported type")
    kind, order, sides = (match[1] for match in found if match)
    # a copy, since torch wants a writable array
    array = np.frombuffer(bytearray(content[end:]), np.dtype(kind))
    shape = [int(side) for side in sides.split(",") if side.strip()]
    return array.reshape(shape, order="F" if order == "True" else "C")


@contextmanager
def open_cache(path: Path) -> Iterator[CacheFile]:
    """Open a cache file, safetensors or npz; raise DamagedCache if it is anything else."""
    try:
        if path.suffix == SUFFIX:
            with path.open("rb") as file:
                yield _Safetensors(file)
        else:
            with zipfile.ZipFile(path) as archive:
                yield _Npz(archive)
    except DamagedCache:
        raise
    except Exception as error:  # zlib, zipfile, NumPy, JSON and memory errors all mean damage here
        raise DamagedCache(path, error) from error


def content_digest(path: Path) -> str:
    """Return a digest of a file's size and content; of a large file, four samples of the content suffice.

    The mtime proves nothing: copies that keep it (cp -p, rsync -t) may be a different image. Reading everything would
    take as long as training from the caches does.
    """
    size = path.stat().st_size
    content = hashlib.blake2b(str(size).encode(), digest_size=16)
    with path.open("rb") as file:
        if size <= PIECES * PIECE_BYTES:
            content.update(file.read())
        else:
            for piece in range(PIECES):
                file.seek((size - PIECE_BYTES) * piece // (PIECES - 1))
                content.update(file.read(PIECE_BYTES))
    return content.hexdigest()


def files_of(path: Path) -> Sequence[Path]:
    """Return the files of an image or a clip: of a clip that is a folder, its frames."""
    return frame_files(path) if path.is_dir() else (path,)


def pixels_digest(path: Path) -> str:
    """Return a digest of the content of an image or a clip, marked if a colour profile changes an image's pixels."""
    if path.is_dir():
        return digest([content_digest(file) for file in files_of(path)])
    return content_digest(path) + ("/sRGB" if not is_clip(path) and is_converted(path) else "")


def require_finite(tensors: Iterable[Tensor]) -> None:
    """Raise ValueError if a tensor of a cache file has a value that is not finite."""
    if not all(torch.isfinite(tensor).all() for tensor in tensors):
        raise ValueError("it contains non-finite values")


def digest(value: Any) -> str:
    """Return a digest of a JSON value."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]
