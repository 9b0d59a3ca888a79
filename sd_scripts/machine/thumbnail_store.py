"""Stores thumbnails and measurements of images, so that each image of a dataset is decoded a single time."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sd_scripts.formats.fast_json import loads
from sd_scripts.machine.remembered import RememberedTables

VERSION = 2
"""Part of every key: incremented when thumbnails or measurements are made differently."""
THUMBNAILS = RememberedTables(
    "thumbnails", {"images": "key TEXT PRIMARY KEY, thumbnail BLOB, measures TEXT"}, largest=100_000
)
"""Of the newest images: about 1 GB."""


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


def measures_of(keys: Iterable[str]) -> dict[str, Measures]:
    """Return the measurements of those images that have thumbnails, by key."""
    rows = THUMBNAILS.rows("images", "key", list(keys), "key, measures")
    try:
        measured = loads(f"[{','.join(text for _, text in rows)}]".encode())
        return {key: _measures(values) for (key, _), values in zip(rows, measured, strict=True)}
    except (ValueError, TypeError, KeyError):  # rows of something else
        THUMBNAILS.remove()
        return {}


def _measures(values: Mapping[str, Any]) -> Measures:
    faces = None if values["faces"] is None else tuple(tuple(face) for face in values["faces"])
    return Measures(**{**values, "bars": tuple(values["bars"]), "faces": faces})


def thumbnail(key: str) -> bytes | None:
    """Return the thumbnail with this key as a JPEG; None if there is none."""
    rows = THUMBNAILS.rows("images", "key", [key], "thumbnail")
    return rows[0][0] if rows else None


def remember(made: Mapping[str, tuple[bytes, Measures]]) -> bool:
    """Store thumbnails with their measurements by key; return whether that worked, as it does not on a full disk."""
    return THUMBNAILS.store(
        "images", [(key, thumbnail, json.dumps(asdict(measures))) for key, (thumbnail, measures) in made.items()]
    )
