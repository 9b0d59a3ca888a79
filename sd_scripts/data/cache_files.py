"""Npz files of caches: never half, damage told in one way, and what says whether they still hold.

Each entry of ours carries a fingerprint of all that it was made from; one that no longer agrees is made again.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

PIECES, PIECE_BYTES = 4, 65536
READERS = 8
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


CacheFound = bool | DamagedCache
"""Whether a cache is there and current."""
Job = TypeVar("Job")


def missing_of(jobs: Sequence[Job], look: Callable[[Job], CacheFound], warn: Callable[[str], None]) -> list[Job]:
    """Return the jobs whose cache must be made, in their order; damaged caches are told."""
    missing = []
    with ThreadPoolExecutor(READERS) as pool:  # most of the time goes into waiting for the disk
        for job, found in zip(jobs, pool.map(look, jobs), strict=True):
            if isinstance(found, DamagedCache):
                warn(f"{found}; it is made anew")
            if found is not True:
                missing.append(job)
    return missing


@contextmanager
def open_arrays(path: Path) -> Iterator[Arrays]:
    """The arrays of an npz file, read when they are asked for; DamagedCache for whatever else lies under its name."""
    try:
        arrays = np.load(path)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise ValueError("it is no .npz file")
        with arrays:
            yield arrays
    except DamagedCache:
        raise
    except Exception as error:  # what a damaged file raises: zlib, zipfile, NumPy's header parser, memory
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
