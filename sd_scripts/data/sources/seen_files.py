"""What earlier runs found out about files, so that the next start need not open 100,000 of them again."""

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sd_scripts.data.plan.buckets import Size
from sd_scripts.formats.clips.probe import Probe, as_json, from_json
from sd_scripts.machine.remembered import RememberedTables

Stamp = tuple[int, int, int]
"""Bytes, modification time and change time in ns. No program can set the change time, so a copy with an old
modification time is distinguished from the earlier file (Windows has the creation time instead)."""
Header = tuple[Size, bool]
"""Size of an image after EXIF rotation, and whether it is animated."""
SETTLED_NS = 2 * 10**9
"""Files changed later than this before they are looked at are not remembered: they could change again unnoticed."""
AT_ONCE = 500
"""Files whose stamps are read by one thread."""
QUICK = 1e-4
"""Seconds that a local disk takes at most for the entry of a file; a network drive takes a millisecond."""
THREADS = 8
SEEN = RememberedTables(
    "seen-files",
    {
        "image_headers": "path BLOB PRIMARY KEY, stamp TEXT, width INTEGER, height INTEGER, animated INTEGER",
        "clip_probes": "path BLOB PRIMARY KEY, stamp TEXT, probe TEXT",
        "valid_caches": "cache_key TEXT PRIMARY KEY",
    },
    largest=1_000_000,
)


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
    for key, stamp, width, height, animated in SEEN.rows("image_headers", "path", list(paths), columns):
        path = paths[key]
        if stamp == _text(stamps[path]) and type(width) is type(height) is int and min(width, height) > 0:
            found[path] = ((width, height), bool(animated))
    return found


def remember_headers(headers: Mapping[Path, Header], stamps: Mapping[Path, Stamp]) -> None:
    """Remember the headers of images; `stamps` were taken before the images were read."""
    settled = {path: stamp for path in headers if (stamp := stamps.get(path)) and is_settled(stamp)}
    rows = [(_key(path), _text(stamp), *headers[path][0], int(headers[path][1])) for path, stamp in settled.items()]
    SEEN.store("image_headers", rows)


def known_probes(stamps: Mapping[Path, Stamp]) -> dict[Path, Probe]:
    """Return the probes of those clips that have not changed since they were remembered."""
    paths = {_key(path): path for path in stamps}
    found = {}
    for key, stamp, values in SEEN.rows("clip_probes", "path", list(paths), "path, stamp, probe"):
        if stamp == _text(stamps[paths[key]]):
            with contextlib.suppress(ValueError, TypeError):  # a damaged row
                found[paths[key]] = from_json(json.loads(values))
    return found


def remember_probes(probes: Mapping[Path, Probe], stamps: Mapping[Path, Stamp]) -> None:
    """Remember the probes of clips; `stamps` were taken before the clips were read."""
    settled = {path: stamp for path in probes if (stamp := stamps.get(path)) and is_settled(stamp)}
    rows = [(_key(path), _text(stamp), json.dumps(as_json(probes[path]))) for path, stamp in settled.items()]
    SEEN.store("clip_probes", rows)


def known_cache_keys(keys: Iterable[str]) -> set[str]:
    """Return the keys that are remembered: each is a digest of a cache file's path and stamp, and of all that its
    content depends on."""
    return {key for (key,) in SEEN.rows("valid_caches", "cache_key", list(keys), "cache_key")}


def remember_cache_keys(keys: Iterable[str]) -> None:
    """Remember that the cache files with these keys are valid."""
    SEEN.store("valid_caches", [(key,) for key in keys])


def _text(stamp: Stamp) -> str:
    return " ".join(map(str, stamp))


def _key(path: Path) -> bytes:
    """Return the path as the file system has it: names need not be valid text."""
    return os.fsencode(os.path.abspath(path))
