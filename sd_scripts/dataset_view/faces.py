"""Find faces in images with OpenCV's YuNet, a model that the user has or downloads."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from sd_scripts.data.sources.images import Pixels
from sd_scripts.dataset_view.looking import shrunk

SMALLEST_IMAGE = 16
"""Pixels a side of an image in which faces are looked for."""
FACE_SIDE = 1280
"""Longer side at which faces are looked for."""
NMS = 0.3
Box = tuple[int, int, int, int]
"""Left, top, width and height in pixels."""


class Faces:
    """OpenCV's YuNet. Raises ValueError, one sentence, for a file that is not one."""

    def __init__(self, file: Path, confidence: float) -> None:
        self._lock = threading.Lock()  # the detector has the size of one image
        cv2.utils.logging.setLogLevel(
            cv2.utils.logging.LOG_LEVEL_ERROR
        )  # errors: users can do nothing about its warnings
        try:
            self._detector: Any = cv2.FaceDetectorYN.create(str(file), "", (320, 320), confidence, NMS)
            self(np.zeros((64, 64, 3), np.uint8))
        except cv2.error as error:
            reason = (str(error).strip().splitlines() or [""])[0][:200]
            raise ValueError(f"model: '{file}' is not a YuNet face detector ({reason})") from error

    def __call__(self, pixels: Pixels) -> list[Box]:
        """Return the box of each face in an image (H, W, 3)."""
        small = shrunk(pixels, FACE_SIDE)
        if min(small.shape[:2]) < SMALLEST_IMAGE:
            return []
        scale = pixels.shape[1] / small.shape[1]
        with self._lock:
            self._detector.setInputSize(small.shape[1::-1])
            _, found = self._detector.detect(np.ascontiguousarray(small[..., ::-1]))
        rows = found if found is not None else ()
        boxes = [tuple(round(float(value) * scale) for value in row[:4]) for row in rows]
        return [kept for box in boxes if (kept := _within(box, pixels))]


def _within(box: Sequence[int], pixels: Pixels) -> Box | None:
    """Return the part of a box within an image; None if there is none."""
    left, top = max(0, box[0]), max(0, box[1])
    right, bottom = min(pixels.shape[1], box[0] + box[2]), min(pixels.shape[0], box[1] + box[3])
    return (left, top, right - left, bottom - top) if right > left and bottom > top else None
