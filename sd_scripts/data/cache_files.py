"""Read and write cache files: atomic writes, one error type for damage, and digests for cache keys.

We write safetensors with the cache key of each entry in the metadata; a key that differs means a rebuild. We read the
npz files of earlier versions too, which have the key in an array named "fingerprint", and those of other trainers,
which have none.
"""

import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sd_scripts.data.caches import SUFFIX
from sd_scripts.data.images import is_converted
from sd_scripts.data.read_ahead import read_ahead
from sd_scripts.data.reading_progress import Progress, now_and_then
from sd_scripts.data.seen_files import known_current, remember_current
from sd_scripts.formats.atomic_files import atomic_file
from sd_scripts.formats.disk import FULL
from sd_scripts.library.model_reader import DTYPES
from sd_scripts.library.safetensors_io import on_cpu, write_tensors

CACHE_KEY, CHECKSUM = "cache_key", "crc32."
FINGERPRINT = "fingerprint"
PIECES, PIECE_BYTES = 4, 65536
READERS, AHEAD = 8, 64
NPY_TYPE = re.compile(r"'descr':\s*'([<>|=]?[a-zA-Z]\d*)'")
NPY_ORDER = re.compile(r"'fortran_order':\s*(True|False)")
NPY_SHAPE = re.compile(r"'shape':\s*\(([\d, ]*)\)")


def write_cache(path: Path, tensors: Mapping[str, Tensor], cache_keys: Mapping[str, str], *, option: str) -> None:
    """Write a safetensors file atomically, in the dtypes of the tensors. Its metadata hold the cache keys and the
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


Job = TypeVar("Job")


def find_missing(
    jobs: Sequence[Job],
    is_current: Callable[[Job], bool],
    warn: Callable[[str], None],
    *,
    progress: Progress,
    evidence: Callable[[Job], str | None] = lambda job: None,
) -> list[Job]:
    """Return the jobs whose cache must be built, in their order; warn about damaged caches.

    `progress` is told how many are up to date. A cache of which there is the same `evidence` as when it was last read
    is not read again; see known_current.
    """
    told = {id(job): each for job in jobs if (each := evidence(job))}
    known = known_current(told.values())
    unread = [job for job in jobs if told.get(id(job)) not in known]

    def check(job: Job) -> bool | DamagedCache:
        try:
            return is_current(job)
        except DamagedCache as error:
            return error

    missing, current = [], []
    done, report = len(jobs) - len(unread), now_and_then(progress)
    with ThreadPoolExecutor(READERS) as pool:  # reading is I/O bound
        for job, found in zip(unread, read_ahead(pool, check, unread, AHEAD), strict=True):
            if isinstance(found, DamagedCache):
                warn(f"{found}; it is rebuilt")
            done += found is True
            report(done, len(jobs))
            if found is not True:
                missing.append(job)
            elif id(job) in told:
                current.append(told[id(job)])
    remember_current(current)
    return missing


class CacheFile(Mapping[str, Tensor]):
    """The tensors of a cache file, each read and checked against its checksum on access."""

    def cache_key(self, size: str = "") -> str | None:
        """Return the cache key of the entry whose names end with `size`; None if another program wrote it."""
        raise NotImplementedError


class _Safetensors(CacheFile):
    def __init__(self, file: BinaryIO):
        length = int.from_bytes(file.read(8), "little")
        self._entries = json.loads(file.read(length))
        self._metadata = self._entries.pop("__metadata__", {})
        self._file, self._start = file, 8 + length

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

    def _read(self, name: str) -> NDArray[Any]:
        return _parse_npy(self._archive.read(f"{name}.npy"))  # which checks its checksum

    def __getitem__(self, name: str) -> Tensor:
        array = self._read(name)
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if not name.startswith(FINGERPRINT))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def cache_key(self, size: str = "") -> str | None:
        return str(self._read(FINGERPRINT + size)) if FINGERPRINT + size in self._names else None


def _parse_npy(content: bytes) -> NDArray[Any]:
    """Parse an array of numbers or text in NumPy's npy format; raise ValueError for anything else.

    NumPy's own reader parses headers with `ast`, which sometimes fails in several threads at once (SystemError: AST
    constructor recursion depth mismatch, CPython 3.11).
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


def pixels_digest(path: Path) -> str:
    """Return a digest of all that the pixels of an image are decoded from. Caches of versions that
    ignored ICC profiles have a different one."""
    return content_digest(path) + ("/sRGB" if is_converted(path) else "")


def digest(value: Any) -> str:
    """Return a digest of a JSON value."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]
