"""Read and write the npz files of caches: atomic writes, one error type for damage, and digests for cache keys.

Each entry that we write stores its cache key under the name "fingerprint"; a key that differs means a rebuild.
"""

import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sd_scripts.formats.atomic_files import atomic_file

PIECES, PIECE_BYTES = 4, 65536
READERS = 8
NPY_TYPE = re.compile(r"'descr':\s*'([<>|=]?[a-zA-Z]\d*)'")
NPY_ORDER = re.compile(r"'fortran_order':\s*(True|False)")
NPY_SHAPE = re.compile(r"'shape':\s*\(([\d, ]*)\)")
Arrays = Mapping[str, NDArray[Any]]


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Write an npz file atomically; raise OSError with one sentence if it cannot be written."""
    try:
        with atomic_file(path) as part, part.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        why = error.strerror or error
        remedy = "free some space, or turn off cache_latents_to_disk and cache_text_encoder_outputs_to_disk"
        raise OSError(f"{path} cannot be written: {why}; {remedy}") from error


class DamagedCache(ValueError):
    """Raised for an unusable cache file; the message names the file and the reason."""

    def __init__(self, path: Path, why: object):
        super().__init__(f"{path} is damaged: {why}")
        self.why = why


CacheStatus = bool | DamagedCache
"""Whether a cache exists and is current; or why it is unusable."""
Job = TypeVar("Job")


def find_missing(jobs: Sequence[Job], check: Callable[[Job], CacheStatus], warn: Callable[[str], None]) -> list[Job]:
    """Return the jobs whose cache must be built, in their order; warn about damaged caches."""
    missing = []
    with ThreadPoolExecutor(READERS) as pool:  # reading is I/O bound
        for job, found in zip(jobs, pool.map(check, jobs), strict=True):
            if isinstance(found, DamagedCache):
                warn(f"{found}; it is rebuilt")
            if found is not True:
                missing.append(job)
    return missing


class _Npz(Mapping[str, NDArray[Any]]):
    """The arrays of an npz file, each read and checked against its checksum on access.

    NumPy's own reader parses headers with `ast`, which sometimes fails in several threads at once (SystemError: AST
    constructor recursion depth mismatch, CPython 3.11).
    """

    def __init__(self, archive: zipfile.ZipFile):
        self._archive = archive
        self._members = {name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")}

    def __getitem__(self, name: str) -> NDArray[Any]:
        with self._archive.open(self._members[name]) as file:
            return _parse_npy(file.read())

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


def _parse_npy(content: bytes) -> NDArray[Any]:
    """Parse an array of numbers or text in NumPy's npy format; raise ValueError for anything else."""
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
def open_arrays(path: Path) -> Iterator[Arrays]:
    """Open an npz file whose arrays are read on access; raise DamagedCache if it is anything else."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield _Npz(archive)
    except DamagedCache:
        raise
    except Exception as error:  # zlib, zipfile, NumPy and memory errors all mean damage here
        raise DamagedCache(path, error) from error


def content_digest(path: Path) -> str:
    """Return a digest of a file's size and content; of a large file, four samples of the content suffice.

    The mtime is no evidence: copies that keep it (cp -p, rsync -t) may be another image. Reading everything would take
    as long as training from the caches does.
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


def digest(value: Any) -> str:
    """Return a digest of a JSON value."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]
