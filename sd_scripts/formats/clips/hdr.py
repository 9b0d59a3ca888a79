"""Converts HDR to sRGB: PQ and HLG by ITU-R BT.2100, with 203 cd/m² as white (ITU-R BT.2408); brighter light is white.

FFmpeg converts the same, but takes ten seconds to prepare for it in every thread.
"""

import functools

import numpy as np
from numpy.typing import NDArray

PQ, HLG = 16, 18
"""Curves in ITU-T H.273."""
WHITE = 203.0
"""cd/m²."""
HLG_PEAK, HLG_GAMMA = 1000.0, 1.2
"""Of the display for which HLG is shown."""
LUMINANCE = np.array([0.2627, 0.6780, 0.0593], dtype=np.float32)
"""Of red, green and blue in BT.2020."""
TO_BT709 = np.array(
    [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]], dtype=np.float32
)
"""Linear BT.2020 -> linear BT.709 (ITU-R BT.2087)."""
LEVELS = 2**16

Floats = NDArray[np.float32]


def to_srgb(codes: NDArray[np.uint16], curve: int) -> NDArray[np.uint8]:
    """Return an image (H, W, 3) of full-range BT.2020 codes as sRGB."""
    light = _light(curve)[codes]  # 1 is white
    if curve == HLG:
        light *= (np.maximum(light @ LUMINANCE, 1e-6) ** (HLG_GAMMA - 1))[..., None]
        light *= HLG_PEAK / WHITE
    narrow = np.clip(light @ TO_BT709.T, 0, 1)
    encoded: NDArray[np.uint8] = _srgb()[(narrow * (LEVELS - 1)).astype(np.uint16)]
    return encoded


@functools.cache
def _light(curve: int) -> Floats:
    """Return the light of each code: of a display for PQ, relative to white; of the scene for HLG, relative to its
    peak."""
    signal = np.linspace(0, 1, LEVELS)
    if curve == PQ:
        power = signal ** (32 / 2523)
        light = (np.maximum(power - 0.8359375, 0) / (18.8515625 - 18.6875 * power)) ** (8192 / 1305)
        return (10_000 / WHITE * light).astype(np.float32)
    bright = (np.exp((signal - 0.55991073) / 0.17883277) + 0.28466892) / 12
    return np.where(signal <= 0.5, signal**2 / 3, bright).astype(np.float32)


@functools.cache
def _srgb() -> NDArray[np.uint8]:
    light = np.linspace(0, 1, LEVELS)
    encoded = np.where(light <= 0.0031308, 12.92 * light, 1.055 * np.maximum(light, 1e-9) ** (1 / 2.4) - 0.055)
    levels: NDArray[np.uint8] = np.rint(255 * encoded).astype(np.uint8)
    return levels
