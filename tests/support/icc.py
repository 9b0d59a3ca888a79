"""ICC profiles made of a few numbers, and the sRGB colours that they mean."""

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WHITE = (0.9642, 1.0, 0.8249)
"""XYZ of D50, to which colours in profiles are adapted."""
SRGB = ((0.4361, 0.2225, 0.0139), (0.3851, 0.7169, 0.0971), (0.1431, 0.0606, 0.7141))
ROMM = ((0.7977, 0.2880, 0.0000), (0.1352, 0.7119, 0.0000), (0.0313, 0.0001, 0.8249))
"""XYZ of red, green and blue."""


def profile(gamma: float, primaries: Sequence[Sequence[float]] = (), *, padding: int = 0) -> bytes:
    """Return the profile of a display; without `primaries` of a grey one. `padding` bytes belong to a tag that nobody
    reads."""
    curve = b"curv\0\0\0\0" + struct.pack(">IH", 1, round(gamma * 256)) + b"\0\0"
    tags = {b"wtpt": _xyz(WHITE)}
    if primaries:
        tags |= {name + b"XYZ": _xyz(colour) for name, colour in zip((b"r", b"g", b"b"), primaries, strict=True)}
        tags |= {name + b"TRC": curve for name in (b"r", b"g", b"b")}
    else:
        tags[b"kTRC"] = curve
    if padding:
        tags[b"junk"] = b"data\0\0\0\0" + bytes(padding)
    start = 128 + 4 + 12 * len(tags)
    table, body = struct.pack(">I", len(tags)), b""
    for name, content in tags.items():
        table += name + struct.pack(">II", start + len(body), len(content))
        body += content
    space = b"RGB " if primaries else b"GRAY"
    head = struct.pack(">I4sI4s4s4s", start + len(body), b"none", 0x02100000, b"mntr", space, b"XYZ ")
    head = (head + bytes(12) + b"acsp" + bytes(28) + _xyz(WHITE)[8:]).ljust(128, b"\0")
    return head + table + body


def in_srgb(pixels: NDArray[np.uint8], gamma: float, primaries: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Return the colours (..., 3), 0..255, that a profile of these primaries displays, clipped to sRGB."""
    linear = (pixels / 255) ** gamma @ np.array(primaries) @ np.linalg.inv(np.array(SRGB))
    return encoded(linear.clip(0, 1))


def encoded(linear: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return intensities of 0..1 as sRGB has them, 0..255."""
    return 255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def _xyz(colour: Sequence[float]) -> bytes:
    return b"XYZ \0\0\0\0" + struct.pack(">3i", *(round(each * 65536) for each in colour))
