"""Find text and the background in images, with ONNX models that the user has or downloads."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from sd_scripts.data.sources.images import Pixels, resize
from sd_scripts.options.images.known_models import IMAGE_MODELS, MODEL_FILES
from sd_scripts.options.images.tools import ImageModelOptions
from sd_scripts.settings.tools.image_tools import default_model
from sd_scripts.tools.captioning.model_files import model_folder
from sd_scripts.tools.captioning.tagger import session_of
from sd_scripts.tools.images.cropping import grown
from sd_scripts.tools.images.pieces import Box

TEXT_SIDE = 960
TEXT_MULTIPLE = 32
MARKED_TEXT = 0.3
"""Probability from which a pixel belongs to a line of text, as PP-OCR has it."""
GROWN_TEXT = 0.6
"""Margin around what the model marks, the core of a line, in its heights."""
SMALLEST_TEXT = 4
"""Pixels of the marked core."""
VALUES = "preprocessor_config.json"
MORE_FILES = (f"*{VALUES}",)
"""Patterns of files that a model may have."""
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5), (1.0, 1.0, 1.0)
HALF_NAMES = ("isnet", "rmbg")
"""Models in whose file names these occur read values of -0.5 to 0.5."""
USUAL_SIDE = 1024
LARGEST_SIDE = 4096


def model_file(finds: str, options: ImageModelOptions, say: Callable[[str], None]) -> Path:
    """Return the ONNX file of the model that finds faces, text or the background. Raises ValueError, one sentence."""
    name = options.model or default_model(finds)
    given = Path(name).expanduser()
    if given.is_file():
        if given.suffix.lower() != ".onnx":
            raise ValueError(f"model: '{name}' is not an .onnx file; choose a model in this format")
        return given
    if given.is_dir():
        return _only_onnx(given, MODEL_FILES[finds])
    folder = model_folder(
        name,
        (MODEL_FILES[finds], *MORE_FILES),
        model_dir=options.model_dir,
        download=options.download,
        say=say,
        known=IMAGE_MODELS,
    )
    return folder / MODEL_FILES[finds]


def _only_onnx(folder: Path, usual: str) -> Path:
    if (folder / usual).is_file():
        return folder / usual
    found = sorted(folder.glob("*.onnx"))
    if len(found) == 1:
        return found[0]
    many = "several .onnx files; choose one of them" if found else "no .onnx file; choose the folder of a model"
    raise ValueError(f"model: '{folder}' contains {many}")


class PlaneModel:
    """An ONNX model that makes one plane of an image. Raises ValueError, one sentence, for a file that is not one."""

    def __init__(self, file: Path, device: str | None) -> None:
        self._file = file
        self._session = session_of(file, device)
        (first, *others) = self._session.get_inputs()
        shape = first.shape
        if others or len(shape) != 4 or (shape[1] not in (3, None) and not isinstance(shape[1], str)):
            raise ValueError(f"model: '{file}' does not read images: its input is {list(shape)}, not [N, 3, H, W]")
        self._input = first.name
        self._dtype = np.float16 if first.type == "tensor(float16)" else np.float32
        height, width = (side if isinstance(side, int) and side > 0 else 0 for side in shape[2:])
        self.sides: tuple[int, int] = height, width
        """Height and width of its input; 0: any."""
        if max(self.sides) > LARGEST_SIDE:
            raise ValueError(f"model: '{file}' reads images of {width}x{height} pixels; the maximum is {LARGEST_SIDE}")

    def __call__(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the first plane (H, W) of its first output for an image (1, 3, H, W)."""
        try:
            output = self._session.run(None, {self._input: batch.astype(self._dtype, copy=False)})[0]
        except Exception as error:  # ONNX Runtime has a dozen classes of errors without a common base
            raise ValueError(f"model: '{self._file}' cannot be used for this task: {_reason(error)}") from error
        array = np.asarray(output, np.float32)
        if array.ndim < 2 or not array.size:
            raise ValueError(f"model: '{self._file}' gives no image; choose a model of this task")
        plane: NDArray[np.float32] = np.nan_to_num(array.reshape(-1, *array.shape[-2:])[0])
        return plane


class Texts:
    """A model that marks the pixels of lines of text, such as PP-OCR's detector (DB)."""

    def __init__(self, file: Path, confidence: float) -> None:
        self._model = PlaneModel(file, "cpu")
        self._confidence = confidence

    def __call__(self, pixels: Pixels) -> list[Box]:
        """Return the box of each line of text in an image (H, W, 3)."""
        height, width = pixels.shape[:2]
        fixed_height, fixed_width = self._model.sides
        scale = min(1.0, TEXT_SIDE / max(height, width))
        size = (
            fixed_width or max(TEXT_MULTIPLE, round(width * scale / TEXT_MULTIPLE) * TEXT_MULTIPLE),
            fixed_height or max(TEXT_MULTIPLE, round(height * scale / TEXT_MULTIPLE) * TEXT_MULTIPLE),
        )
        batch = normalized(resize(pixels, size, None)[..., ::-1], IMAGENET)  # read as BGR, with ImageNet's values
        plane = self._model(batch)
        count, labels, rows, _ = cv2.connectedComponentsWithStats((plane > MARKED_TEXT).astype(np.uint8))
        means = np.bincount(labels.ravel(), plane.ravel(), count) / np.maximum(np.bincount(labels.ravel()), 1)
        across, down = width / plane.shape[1], height / plane.shape[0]
        boxes = []
        for mean, (left, top, wide, high, area) in list(zip(means, rows, strict=True))[1:]:
            if area >= SMALLEST_TEXT and mean >= self._confidence:
                core = round(left * across), round(top * down), round(wide * across), round(high * down)
                boxes.append(grown(core, GROWN_TEXT))
        return boxes


class Foreground:
    """A model that separates the foreground: BiRefNet, U2-Net, IS-Net and others whose output is one plane."""

    def __init__(self, file: Path, device: str | None = None) -> None:
        self._model = PlaneModel(file, device)
        height, width = self._model.sides
        self._size = width or USUAL_SIDE, height or USUAL_SIDE
        self._values = _values_of(file)

    def __call__(self, pixels: Pixels) -> Pixels:
        """Return how much of each pixel (H, W) of an image (H, W, 3) is foreground, 0 to 255."""
        batch = normalized(resize(pixels, self._size, None), self._values)
        plane = self._model(batch)
        if plane.min() < -0.01 or plane.max() > 1.01:
            plane = 1 / (1 + np.exp(-plane.clip(-30, 30)))  # logits
        share = np.rint(plane.clip(0, 1) * 255).astype(np.uint8)
        size = pixels.shape[1], pixels.shape[0]
        mask: Pixels = cv2.resize(share, size, interpolation=cv2.INTER_LINEAR).astype(np.uint8, copy=False)
        return mask


def normalized(pixels: Pixels, values: tuple[Sequence[float], Sequence[float]]) -> NDArray[np.float32]:
    """Return an image (H, W, 3) as (1, 3, H, W) float32, from 0 to 1 less a mean, divided by a deviation."""
    mean, deviation = (np.array(each, np.float32) for each in values)
    scaled = (pixels.astype(np.float32) / 255 - mean) / deviation
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])


def _values_of(file: Path) -> tuple[Sequence[float], Sequence[float]]:
    """Return mean and deviation that a model reads, from the file next to it or above it, else as its name says."""
    for folder in (file.parent, file.parent.parent):
        try:
            content = json.loads((folder / VALUES).read_text(encoding="utf-8"))
            mean, deviation = content["image_mean"], content["image_std"]
            if len(mean) == len(deviation) == 3 and all(float(each) > 0 for each in deviation):
                return [float(each) for each in mean], [float(each) for each in deviation]
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return HALF if any(name in file.name.lower() for name in HALF_NAMES) else IMAGENET


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
