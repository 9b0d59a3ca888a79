"""Read the header of an MP4 file: size, length, and the texts that were written with it.

It is parsed here rather than by FFmpeg, since the page reads it for every clip of a folder, which anyone may have
written: only the `moov` box is read, and it has a largest size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from sd_scripts.formats.regular_files import open_regular

LARGEST_HEADER = 16 << 20
"""Bytes of a `moov` box that is read; an hour of video has about 1 MB."""
MOST_BOXES = 1000
"""Boxes at the top of a file, and keys of its texts, that are read."""
TEXT = 1
"""Type of a value that is text in UTF-8."""


@dataclass(frozen=True, kw_only=True)
class Mp4Header:
    """What an MP4 file says of itself."""

    width: int
    height: int
    frames: int
    fps: float
    """Frames per second, at the beginning if they vary."""
    texts: dict[str, str] = field(default_factory=dict)
    """Texts by key, as PNG images have them by keyword."""

    @property
    def seconds(self) -> float:
        return self.frames / self.fps


def read_mp4_header(source: Path) -> Mp4Header:
    """Return the header of an MP4 file. Raises OSError for a file that is missing or not regular, and ValueError, one
    sentence, for one that is not an MP4 file, was cut off, or has no video."""
    with open_regular(source) as file:
        moov = _read_moov(file)
    if moov is None:
        raise ValueError(f"'{source}' is not an MP4 file, or was cut off")
    try:
        track = _video(moov)
        width, height = (side >> 16 for side in struct.unpack(">II", track["tkhd"][-8:]))  # 16.16 fixed point
        (frames,) = struct.unpack_from(">I", track["stsz"], 8)
        (scale,) = struct.unpack_from(">I", track["mdhd"], 20 if track["mdhd"][:1] == b"\1" else 12)  # ticks per second
        (ticks,) = struct.unpack_from(">I", track["stts"], 12)  # of the first frames
        texts = _texts(dict(_boxes(moov)).get(b"udta", b""))
        return Mp4Header(width=width, height=height, frames=frames, fps=scale / ticks, texts=texts)
    except (struct.error, KeyError, ZeroDivisionError) as error:
        raise ValueError(f"'{source}' is not an MP4 file with a video") from error


def _read_moov(file: IO[bytes]) -> bytes | None:
    """Return the content of the `moov` box of a file whose boxes are all complete; else None."""
    end = file.seek(0, 2)
    moov = None
    at = 0
    for _ in range(MOST_BOXES):
        if at == end:
            return moov
        file.seek(at)
        head = file.read(16)
        if len(head) < 8:
            return None
        size, kind = struct.unpack(">I4s", head[:8])
        start = 8
        if size == 1 and len(head) == 16:
            size = int.from_bytes(head[8:], "big")
            start = 16
        elif size == 0:  # to the end of the file
            size = end - at
        if size < start or at + size > end or (at == 0 and kind != b"ftyp"):
            return None
        if kind == b"moov":
            if size > LARGEST_HEADER:
                return None
            file.seek(at + start)
            moov = file.read(size - start)
        at += size
    return None


def _boxes(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield kind and content of each box; nothing from where they are broken."""
    at = 0
    while at + 8 <= len(content):
        size, kind = struct.unpack_from(">I4s", content, at)
        if size < 8 or at + size > len(content):
            return
        yield kind, content[at + 8 : at + size]
        at += size


TABLES = ("mdia", "minf", "stbl")
PATHS = {"hdlr": ("mdia", "hdlr"), "mdhd": ("mdia", "mdhd"), "stts": (*TABLES, "stts"), "stsz": (*TABLES, "stsz")}
"""Boxes of a track and where they are in it, in addition to `tkhd`."""


def _video(moov: bytes) -> dict[str, bytes]:
    """Return the boxes of the first video track. Raises KeyError if there is none, or one of them is missing."""
    for kind, track in _boxes(moov):
        if kind == b"trak" and _inside(track, *PATHS["hdlr"])[8:12] == b"vide":
            return {"tkhd": _inside(track, "tkhd"), **{name: _inside(track, *path) for name, path in PATHS.items()}}
    raise KeyError("vide")


def _inside(content: bytes, *path: str) -> bytes:
    for kind in path:
        content = dict(_boxes(content))[kind.encode()]
    return content


def _texts(udta: bytes) -> dict[str, str]:
    """Return the texts of the `mdta` form, which has keys of any name: `keys` lists them, `ilst` has their values."""
    meta = dict(_boxes(udta)).get(b"meta", b"")
    inner = dict(_boxes(meta[4:]))  # after version and flags
    if b"keys" not in inner or b"ilst" not in inner:
        return {}
    keys = [key.decode(errors="replace") for _, key in _boxes(inner[b"keys"][8:])][:MOST_BOXES]
    texts: dict[str, str] = {}
    for number, item in _boxes(inner[b"ilst"]):
        data = dict(_boxes(item)).get(b"data", b"")
        index = int.from_bytes(number, "big") - 1
        if 0 <= index < len(keys) and data[:4] == TEXT.to_bytes(4, "big"):
            texts.setdefault(keys[index], data[8:].decode(errors="replace"))
    return texts
