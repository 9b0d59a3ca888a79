"""The colours that a PNG states without an ICC profile, by its chunks cICP, gAMA and cHRM, as such a profile."""

import functools
import struct
from collections.abc import Iterable

import numpy as np
from PIL import Image

from sd_scripts.formats.images.image_files import png_chunk

Point = tuple[float, float]
"""A colour as CIE x and y."""
D65: Point = (0.3127, 0.329)
BT709: tuple[Point, ...] = ((0.64, 0.33), (0.3, 0.6), (0.15, 0.06))
PRIMARIES: dict[int, tuple[Point, ...]] = {
    1: BT709,
    9: ((0.708, 0.292), (0.17, 0.797), (0.131, 0.046)),
    12: ((0.68, 0.32), (0.265, 0.69), (0.15, 0.06)),
}
"""Red, green and blue by their code in ITU-T H.273: sRGB, BT.2020 and Display P3, all with the white of D65."""
SRGB_CURVE = (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
CURVES: dict[int, tuple[float, ...]] = {
    **dict.fromkeys((1, 6, 13, 14, 15), SRGB_CURVE),  # browsers show the curves of video as sRGB
    4: (2.2,),
    5: (2.8,),
    8: (1.0,),
}
"""Parameters of the curve, or its exponent, by code. Without PQ and HLG, whose light exceeds sRGB."""
USUAL_GAMMA, TOLERANCE = 1 / 2.2, 0.05
"""What stands for sRGB's curve in gAMA, and up to which relative difference, as libpng has it."""
D50 = (0.9642, 1.0, 0.8249)
BRADFORD = np.array([(0.8951, 0.2664, -0.1614), (-0.7502, 1.7135, 0.0367), (0.0389, -0.0685, 1.0296)])


def png_profile(image: Image.Image, *, grey: bool) -> bytes:
    """Return an ICC profile of the colours that an open PNG states, whose pixels are not decoded yet; b"" if it states
    none, or they count less than its ICC profile: cICP counts most, gAMA and cHRM least, as in browsers."""
    info = image.info
    code = png_chunk(image.fp, b"cICP", until=b"IDAT") if image.fp else b""  # type: ignore[attr-defined]
    if len(code) == 4 and code[0] in PRIMARIES and code[1] in CURVES:
        return _profile((D65, *PRIMARIES[code[0]]), CURVES[code[1]], grey)
    if info.get("icc_profile") or "srgb" in info:
        return b""
    gamma = info.get("gamma", 0.0)
    numbers = info.get("chromaticity")
    usable = 0.1 <= gamma <= 10
    if not usable and not numbers:
        return b""
    is_usual = not usable or abs(gamma / USUAL_GAMMA - 1) <= TOLERANCE
    points = tuple(zip(numbers[::2], numbers[1::2], strict=True)) if numbers else (D65, *BT709)
    return _profile(points, SRGB_CURVE if is_usual else (1 / gamma,), grey)


@functools.lru_cache(maxsize=32)
def _profile(points: tuple[Point, ...], curve: tuple[float, ...], grey: bool) -> bytes:
    """Return the ICC profile of white, red, green and blue with a curve; b"" if these chromaticities are impossible."""
    kind = 3 if len(curve) > 1 else 0
    drawn = b"para\0\0\0\0" + struct.pack(">HH", kind, 0) + _fixed(curve)
    if grey:
        return _file(b"GRAY", {b"wtpt": _xyz(D50), b"kTRC": drawn})
    try:
        white, *colours = (np.array([x / y, 1.0, (1 - x - y) / y]) for x, y in points)
        matrix = np.stack(colours, axis=1)
        matrix = matrix * np.linalg.solve(matrix, white)  # the three together are white
        scales = BRADFORD @ D50 / (BRADFORD @ white)
        adapted = np.linalg.solve(BRADFORD, scales[:, None] * (BRADFORD @ matrix))
        tags = {name: _xyz(adapted[:, place]) for place, name in enumerate((b"rXYZ", b"gXYZ", b"bXYZ"))}
    except (ArithmeticError, ValueError, struct.error):
        return b""
    return _file(b"RGB ", {b"wtpt": _xyz(D50), **tags, **dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), drawn)})


def _file(space: bytes, tags: dict[bytes, bytes]) -> bytes:
    table = b""
    content = b""
    start = 128 + 4 + 12 * len(tags)
    for name, tag in tags.items():
        table += name + struct.pack(">II", start + len(content), len(tag))
        content += tag
    size = start + len(content)
    head = struct.pack(">I4xI4s4s4s12x4s", size, 0x04300000, b"mntr", space, b"XYZ ", b"acsp")
    head += bytes(68 - len(head)) + _fixed(D50)
    return head.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + content


def _xyz(values: Iterable[float]) -> bytes:
    return b"XYZ \0\0\0\0" + _fixed(values)


def _fixed(values: Iterable[float]) -> bytes:
    return b"".join(struct.pack(">i", round(value * 65536)) for value in values)
