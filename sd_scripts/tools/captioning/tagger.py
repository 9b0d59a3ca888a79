"""WD14-family taggers: an ONNX model with a list of tags next to it, run by ONNX Runtime."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
from numpy.typing import NDArray

from sd_scripts.data.sources.images import Pixels
from sd_scripts.options.captioning.text import TaggerOptions
from sd_scripts.tools.captioning.tags import TagRules, read_tags

FILES = ("model.onnx", "selected_tags.csv")
LARGEST_SIDE = 2048
PROVIDERS = ("CUDAExecutionProvider", "ROCMExecutionProvider", "DmlExecutionProvider", "CPUExecutionProvider")


def prepared(pixels: Pixels, side: int) -> NDArray[np.float32]:
    """Return an image (H, W, 3) as these models read it: padded to a square with white, resized, in the order BGR, with
    values of 0 to 255 (side, side, 3)."""
    height, width = pixels.shape[:2]
    longest = max(height, width)
    top, left = (longest - height) // 2, (longest - width) // 2
    square = np.full((longest, longest, 3), 255, np.uint8)
    square[top : top + height, left : left + width] = pixels
    method = cv2.INTER_AREA if longest > side else cv2.INTER_CUBIC
    resized = square if longest == side else cv2.resize(square, (side, side), interpolation=method)
    return np.ascontiguousarray(resized[..., ::-1], np.float32)


class Tagger:
    """A model that is loaded. Raises ValueError, one sentence, for files that are not one."""

    def __init__(self, folder: Path, options: TaggerOptions, device: str | None):
        tags = read_tags(folder / FILES[1])
        self._rules = TagRules(tags, options)
        self._session = session_of(folder / FILES[0], device)
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or len(outputs) != 1:
            raise ValueError(f"model: '{folder}' is not a WD14 tagger: it has {len(inputs)} inputs")
        self._input = inputs[0].name
        self._side = _side_of(inputs[0].shape, folder)
        self._batches = not isinstance(inputs[0].shape[0], int)
        count = outputs[0].shape[-1]
        if isinstance(count, int) and count != len(tags):
            raise ValueError(
                f"model: the model has {count} tags but '{FILES[1]}' lists {len(tags)}; they do not belong together"
            )

    def __call__(self, images: Sequence[Pixels]) -> list[list[str]]:
        """Return the tags of each image (H, W, 3)."""
        batch = np.stack([prepared(image, self._side) for image in images])
        parts = [batch] if self._batches else [batch[n : n + 1] for n in range(len(batch))]
        rows = [row for part in parts for row in self._session.run(None, {self._input: part})[0]]
        return [self._rules.choose(np.asarray(row, np.float32)) for row in rows]


def session_of(file: Path, device: str | None) -> Any:
    available = onnxruntime.get_available_providers()
    wanted = ("CPUExecutionProvider",) if device == "cpu" else PROVIDERS
    onnxruntime.set_default_logger_severity(3)  # users can do nothing about its warnings
    try:
        return onnxruntime.InferenceSession(file, providers=[name for name in wanted if name in available])
    except Exception as error:  # it has a dozen classes of errors without a common base
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise ValueError(f"model: '{file}' cannot be loaded: {reason[0][:300]}") from error


def _side_of(shape: Sequence[int | str], folder: Path) -> int:
    """Return the side of the images of a model whose input is (N, side, side, 3)."""
    side = shape[1] if len(shape) == 4 and shape[1] == shape[2] and shape[3] == 3 else None
    if isinstance(side, int) and 1 <= side <= LARGEST_SIDE:
        return side
    raise ValueError(
        f"model: '{folder}' is not a WD14 tagger: its input is {list(shape)}, and theirs is [N, 448, 448, 3]"
    )
