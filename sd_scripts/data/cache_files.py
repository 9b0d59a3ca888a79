"""Npz files of caches: never half, damage told in one way, and what says whether they still hold.

Each entry of ours carries a fingerprint of all that it was made from; one that no longer agrees is made again.
"""

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

PIECES, PIECE_BYTES = 4, 65536
READERS = 8
NPY_TYPE = re.compile(r"'descr':\s*'([<>|=]?[a-zA-Z]\d*)'")
NPY_ORDER = re.compile(r"'fortran_order':\s*(True|False)")
NPY_SHAPE = re.compile(r"'shape':\s*\(([\d, ]*)\)")
Arrays = Mapping[str, NDArray[Any]]


def write_arrays(path: Path, arrays: Arrays) -> None:
    """An npz file that is there whole or not at all; OSError with one sentence when the disk does not take it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        why = error.strerror or error
        remedy = "make room, or turn cache_latents_to_disk and cache_text_encoder_outputs_to_disk off"
        raise OSError(f"{path} cannot be written: {why}; {remedy}") from error
    finally:
        with suppress(OSError):
            beside.unlink()


class DamagedCache(ValueError):
    """A cache that cannot be used as it is; the message names the file and says why."""

    def __init__(self, path: Path, why: object):
        super().__init__(f"{path} is damaged: {why}")
        self.why = why


CacheStatus = bool | DamagedCache
"""Whether a cache is there and current."""
Job = TypeVar("Job")


def find_missing(jobs: Sequence[Job], check: Callable[[Job], CacheStatus], warn: Callable[[str], None]) -> list[Job]:
    """Return the jobs whose cache must be made, in their order; damaged caches are told."""
    missing = []
    with ThreadPoolExecutor(READERS) as pool:  # most of the time goes into waiting for the disk
        for job, found in zip(jobs, pool.map(check, jobs), strict=True):
            if isinstance(found, DamagedCache):
                warn(f"{found}; it is made anew")
            if found is not True:
                missing.append(job)
    return missing


class _Npz(Mapping[str, NDArray[Any]]):
    """The arrays of an npz file, each read, and its checksum compared, when it is asked for.

    NumPy's own reader parses headers with `ast`, which fails now and then when several threads do (SystemError: AST
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
    """An array of numbers or text in NumPy's format; ValueError for anything else."""
    if content[:6] != b"\x93NUMPY":
        raise ValueError("it holds something else than arrays")
    width = 2 if content[6] == 1 else 4
    start = 8 + width
    end = start + int.from_bytes(content[8:start], "little")
    header = content[start:end].decode("latin-1")
    found = [pattern.search(header) for pattern in (NPY_TYPE, NPY_ORDER, NPY_SHAPE)]
    if not all(found):
        raise ValueError("it holds arrays of another kind")
    kind, order, sides = (match[1] for match in found if match)
    # a copy, so that it can be written to, as torch wants it
    array = np.frombuffer(bytearray(content[end:]), np.dtype(kind))
    shape = [int(side) for side in sides.split(",") if side.strip()]
    return array.reshape(shape, order="F" if order == "True" else "C")


@contextmanager
def open_arrays(path: Path) -> Iterator[Arrays]:
    """The arrays of an npz file, read when they are asked for; DamagedCache for whatever else lies under its name."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield _Npz(archive)
    except DamagedCache:
        raise
    except Exception as error:  # what a damaged file raises: zlib, zipfile, NumPy, memory
        raise DamagedCache(path, error) from error


def content_digest(path: Path) -> str:
    """Of a file's size and content; of a large file four pieces tell whether it was replaced by another.

    Its time does not tell: copies that keep the time (cp -p, rsync -t) may hold another image. Reading all of it would
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


def digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
