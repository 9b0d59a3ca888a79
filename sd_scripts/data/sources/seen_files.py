"""What earlier runs found out about files, so that the next start need not open 100,000 of them again.

It is an SQLite file next to the list of runs. Nothing depends on it: missing entries are determined again, and a
damaged or read-only file is treated as an empty one.
"""

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sd_scripts.data.plan.buckets import Size
from sd_scripts.formats.clips.probe import Probe, as_json, from_json
from sd_scripts.formats.private import private_file, private_folder
from sd_scripts.runs.store import store_path

Stamp = tuple[int, int, int]
"""Bytes, modification time and change time in ns. No program can set the change time, so a copy with an old
modification time is distinguished from the earlier file (Windows has the creation time instead)."""
Header = tuple[Size, bool]
"""Size of an image after EXIF rotation, and whether it is animated."""
SETTLED_NS = 2 * 10**9
"""Files changed later than this before they are looked at are not remembered: they could change again unnoticed."""
AT_ONCE = 500
"""Rows looked up by one statement."""
LARGEST = 1_000_000
"""Rows that a table keeps, the newest ones."""
BUSY_SECONDS = 5.0
QUICK = 1e-4
"""Seconds that a local disk takes at most for the entry of a file; a network drive takes a millisecond."""
THREADS = 8
TABLES = {
    "image_headers": "path BLOB PRIMARY KEY, stamp TEXT, width INTEGER, height INTEGER, animated INTEGER",
    "clip_probes": "path BLOB PRIMARY KEY, stamp TEXT, probe TEXT",
    "valid_caches": "cache_key TEXT PRIMARY KEY",
}


def seen_files_path() -> Path:
    path = store_path()
    return path.with_name(path.name.replace("runs", "seen-files", 1))


def stamps_of(paths: Iterable[Path]) -> dict[Path, Stamp]:
    """Return the stamps of those files that exist."""
    paths = list(paths)
    first, *chunks = [paths[start : start + AT_ONCE] for start in range(0, len(paths), AT_ONCE)] or [[]]
    begun = time.perf_counter()
    stamps = dict(_stamps(first))
    if time.perf_counter() - begun < QUICK * len(first):  # threads would only wait for each other
        for chunk in chunks:
            stamps.update(_stamps(chunk))
        return stamps
    with ThreadPoolExecutor(THREADS) as pool:
        for found in pool.map(_stamps, chunks):
            stamps.update(found)
    return stamps


def _stamps(paths: Iterable[Path]) -> list[tuple[Path, Stamp]]:
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            stat = os.stat(path)
            found.append((path, (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)))
    return found


def is_settled(stamp: Stamp) -> bool:
    """Return whether the file has not changed for a while, so that its next change will change its stamp."""
    return max(stamp[1:]) < time.time_ns() - SETTLED_NS


def known_headers(stamps: Mapping[Path, Stamp]) -> dict[Path, Header]:
    """Return the headers of those images that have not changed since they were remembered."""
    paths = {_key(path): path for path in stamps}
    found = {}
    columns = "path, stamp, width, height, animated"
    for key, stamp, width, height, animated in _rows("image_headers", "path", list(paths), columns):
        path = paths[key]
        if stamp == _text(stamps[path]) and type(width) is type(height) is int and min(width, height) > 0:
            found[path] = ((width, height), bool(animated))
    return found


def remember_headers(headers: Mapping[Path, Header], stamps: Mapping[Path, Stamp]) -> None:
    """Remember the headers of images; `stamps` were taken before the images were read."""
    settled = {path: stamp for path in headers if (stamp := stamps.get(path)) and is_settled(stamp)}
    rows = [(_key(path), _text(stamp), *headers[path][0], int(headers[path][1])) for path, stamp in settled.items()]
    _store("image_headers", rows)


def known_probes(stamps: Mapping[Path, Stamp]) -> dict[Path, Probe]:
    """Return the probes of those clips that have not changed since they were remembered."""
    paths = {_key(path): path for path in stamps}
    found = {}
    for key, stamp, values in _rows("clip_probes", "path", list(paths), "path, stamp, probe"):
        if stamp == _text(stamps[paths[key]]):
            with contextlib.suppress(ValueError, TypeError):  # a damaged row
                found[paths[key]] = from_json(json.loads(values))
    return found


def remember_probes(probes: Mapping[Path, Probe], stamps: Mapping[Path, Stamp]) -> None:
    """Remember the probes of clips; `stamps` were taken before the clips were read."""
    settled = {path: stamp for path in probes if (stamp := stamps.get(path)) and is_settled(stamp)}
    rows = [(_key(path), _text(stamp), json.dumps(as_json(probes[path]))) for path, stamp in settled.items()]
    _store("clip_probes", rows)


def known_cache_keys(keys: Iterable[str]) -> set[str]:
    """Return the keys that are remembered: each is a digest of a cache file's path and stamp, and of all that its
    content depends on."""
    return {key for (key,) in _rows("valid_caches", "cache_key", list(keys), "cache_key")}


def remember_cache_keys(keys: Iterable[str]) -> None:
    """Remember that the cache files with these keys are valid."""
    _store("valid_caches", [(key,) for key in keys])


def _text(stamp: Stamp) -> str:
    return " ".join(map(str, stamp))


def _key(path: Path) -> bytes:
    """Return the path as the file system has it: names need not be valid text."""
    return os.fsencode(os.path.abspath(path))


def _rows(table: str, key: str, wanted: Sequence[object], columns: str) -> list[tuple[Any, ...]]:
    """Return these columns of the rows whose key is wanted."""
    rows: list[tuple[Any, ...]] = []

    def read(db: sqlite3.Connection) -> None:
        for start in range(0, len(wanted), AT_ONCE):
            chunk = wanted[start : start + AT_ONCE]
            places = ",".join("?" * len(chunk))
            rows.extend(db.execute(f"SELECT {columns} FROM {table} WHERE {key} IN ({places})", chunk))

    if wanted and seen_files_path().is_file():
        _with_file(read)
    return rows


def _store(table: str, rows: Sequence[tuple[object, ...]]) -> None:
    """Add or replace rows; drop the oldest of too many."""

    def write(db: sqlite3.Connection) -> None:
        for name, columns in TABLES.items():
            db.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
        with db:
            db.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)
            db.execute(f"DELETE FROM {table} WHERE rowid <= (SELECT max(rowid) FROM {table}) - ?", (LARGEST,))

    if rows:
        _with_file(write)


def _with_file(work: Callable[[sqlite3.Connection], None]) -> None:
    """Run `work` on the file if it can be used; delete a damaged one, which is created again."""
    path = seen_files_path()
    try:
        private_file(private_folder(path.parent) / path.name)  # names of images are private
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as db:
            work(db)
    except (sqlite3.OperationalError, OSError):
        pass  # busy, on a full disk, or without the table
    except sqlite3.DatabaseError:
        with contextlib.suppress(OSError):
            path.unlink()
