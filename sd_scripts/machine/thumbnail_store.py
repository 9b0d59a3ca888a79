"""Stores thumbnails and measurements of images, so that each image of a dataset is decoded a single time.

It is an SQLite file next to the list of runs. Nothing depends on it: missing entries are made again, and a damaged or
read-only file is treated as an empty one.
"""

import contextlib
import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sd_scripts.formats.fast_json import loads
from sd_scripts.formats.private import private_file, private_folder
from sd_scripts.runs.store import store_path

VERSION = 2
"""Part of every key: incremented when thumbnails or measurements are made differently."""
LARGEST = 100_000
"""Images whose thumbnails are kept, the newest ones: about 1 GB."""
AT_ONCE = 500
"""Rows looked up by one statement."""
BUSY_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Measures:
    """What was measured on an image."""

    digest: str
    """Of the bytes of the file: equal for exact copies."""
    likeness: str
    """128 bits and 16 colours as hexadecimal digits; little differs between images that look alike."""
    sharpness: float
    """Variance of the Laplacian of the grey image with a longer side of at most 512 pixels; low if it is blurred."""
    bars: tuple[float, float, float, float]
    """Shares of the image that are black bars: left, top, right, bottom."""
    faces: tuple[tuple[float, float, float, float], ...] | None = None
    """Left, top, width and height of each face, as shares of the image; None: nobody looked for faces."""


def image_key(path: str, size: int, mtime_ns: int) -> str:
    """Return the key of an image file with this many bytes that was modified then."""
    name = os.fsencode(path if os.path.isabs(path) else os.path.abspath(path))
    return hashlib.blake2b(b"%d %d %d " % (VERSION, size, mtime_ns) + name, digest_size=16).hexdigest()


def thumbnails_path() -> Path:
    path = store_path()
    return path.with_name(path.name.replace("runs", "thumbnails", 1))


def measures_of(keys: Iterable[str]) -> dict[str, Measures]:
    """Return the measurements of those images that have thumbnails, by key."""
    found: dict[str, Measures] = {}
    wanted = list(keys)

    def read(db: sqlite3.Connection) -> None:
        for start in range(0, len(wanted), AT_ONCE):
            chunk = wanted[start : start + AT_ONCE]
            marks = ",".join("?" * len(chunk))
            rows = db.execute(f"SELECT key, measures FROM images WHERE key IN ({marks})", chunk).fetchall()
            for (key, _), values in zip(rows, loads(f"[{','.join(text for _, text in rows)}]".encode()), strict=True):
                faces = None if values["faces"] is None else tuple(tuple(face) for face in values["faces"])
                found[key] = Measures(**{**values, "bars": tuple(values["bars"]), "faces": faces})

    if wanted:
        _with_file(read)
    return found


def thumbnail(key: str) -> bytes | None:
    """Return the thumbnail with this key as a JPEG; None if there is none."""
    rows: list[tuple[bytes]] = []
    _with_file(lambda db: rows.extend(db.execute("SELECT thumbnail FROM images WHERE key = ?", (key,))))
    return rows[0][0] if rows else None


def remember(made: Mapping[str, tuple[bytes, Measures]]) -> bool:
    """Store thumbnails with their measurements by key; return whether that worked, as it does not on a full disk."""
    rows: Sequence[tuple[object, ...]] = [
        (key, thumbnail, json.dumps(asdict(measures))) for key, (thumbnail, measures) in made.items()
    ]

    def write(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE IF NOT EXISTS images (key TEXT PRIMARY KEY, thumbnail BLOB, measures TEXT)")
        with db:
            db.executemany("INSERT OR REPLACE INTO images VALUES (?, ?, ?)", rows)
            db.execute("DELETE FROM images WHERE rowid <= (SELECT max(rowid) FROM images) - ?", (LARGEST,))

    return not rows or _with_file(write)


def _with_file(work: Callable[[sqlite3.Connection], None]) -> bool:
    """Run `work` on the file and return whether that worked; delete a damaged one, which is created again."""
    path = thumbnails_path()
    try:
        private_file(private_folder(path.parent) / path.name)  # images are private
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as db:
            work(db)
            return True
    except (sqlite3.OperationalError, OSError):
        return False  # busy, on a full disk, or without the table
    except (sqlite3.DatabaseError, ValueError, TypeError, KeyError):  # not a database, or rows of something else
        with contextlib.suppress(OSError):
            path.unlink()
        return False
