"""Resize images, and upscale small ones with a model of spandrel's."""

import importlib
import importlib.util
import math
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sd_scripts.data.sources.images import Pixels, resize
from sd_scripts.options.images.tools import SizeOptions
from sd_scripts.tools.images.pieces import Edited, Piece, whole

OVERLAP = 16
"""Pixels by which tiles overlap, so that their edges do not show."""
MODEL_SUFFIXES = (".safetensors", ".pth", ".ckpt")
MISSING = "needs the package spandrel: pip install --no-deps spandrel einops"
LARGEST_SCALE = 8
LONGEST_SIDE = 16384
Upscale = Callable[[Pixels], Pixels]


def target_size(size: tuple[int, int], options: SizeOptions) -> tuple[int, int]:
    """Return the size (width, height) that an image gets, with its aspect ratio."""
    present = {"area": math.sqrt(math.prod(size)), "longest": max(size), "shortest": min(size)}[options.resize_by]
    scale = options.size / present
    width, height = (max(1, round(side * scale)) for side in size)
    return width, height


def resize_tool(options: SizeOptions) -> Callable[[Pixels], Edited]:
    """Return the tool that shrinks images, and with `enlarge` also enlarges them."""

    def tool(pixels: Pixels) -> Edited:
        size = pixels.shape[1], pixels.shape[0]
        wanted = target_size(size, options)
        if wanted == size or (not options.enlarge and wanted > size):
            return whole(pixels, "smaller than size" if wanted > size else "")
        if max(wanted) > LONGEST_SIDE:
            return whole(pixels, f"too elongated: it would be {max(wanted)} pixels long")
        return _at(pixels, resize(pixels, wanted, None))

    return tool


def upscale_tool(options: SizeOptions, upscale: Upscale) -> Callable[[Pixels], Edited]:
    """Return the tool that upscales images smaller than `size`, and shrinks the result to it."""

    def tool(pixels: Pixels) -> Edited:
        size = pixels.shape[1], pixels.shape[0]
        wanted = target_size(size, options)
        if wanted <= size:
            return whole(pixels, "large enough")
        if max(wanted) > LONGEST_SIDE:
            return whole(pixels, f"too elongated: it would be {max(wanted)} pixels long")
        large = upscale(np.ascontiguousarray(pixels[..., :3]))
        if pixels.shape[2] == 4:
            large = np.dstack([large, resize(np.ascontiguousarray(pixels[..., 3]), large.shape[1::-1], None)])
        if wanted < (large.shape[1], large.shape[0]):
            return _at(pixels, resize(large, wanted, None))
        return _at(pixels, large)

    return tool


def _at(pixels: Pixels, resized: Pixels) -> Edited:
    return Edited(pieces=[Piece(pixels=resized, box=(0, 0, pixels.shape[1], pixels.shape[0]))])


class Upscaler:
    """A model that is loaded by spandrel. Raises ValueError, one sentence, for a file that is not one."""

    def __init__(self, file: Path, tile: int, device: str | None) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._tile = tile
        if file.suffix.lower() not in MODEL_SUFFIXES or not file.is_file():
            raise ValueError(f"upscale_model: '{file}' is not a model file; choose a .safetensors or .pth file")
        with _without_torchvision():
            try:
                spandrel = importlib.import_module("spandrel")
            except ImportError:
                raise ValueError(f"upscale_model: {MISSING}") from None
            try:
                # its own unpickler accepts tensors and numbers only
                model: Any = spandrel.ModelLoader(device=self._device).load_from_file(str(file))
            except Exception as error:  # unknown models and broken files raise errors of many classes
                raise ValueError(f"upscale_model: '{file}' cannot be loaded: {_reason(error)}") from error
        if not isinstance(model, spandrel.ImageModelDescriptor) or model.input_channels != 3 or model.scale < 2:
            raise ValueError(f"upscale_model: '{file}' is a model of {model.purpose}, not an upscaler of colour images")
        if model.scale > LARGEST_SCALE:
            raise ValueError(f"upscale_model: '{file}' upscales {model.scale} times; the maximum is {LARGEST_SCALE}")
        self._model = model.eval()
        self.scale: int = model.scale

    def __call__(self, pixels: Pixels) -> Pixels:
        """Return an image (H, W, 3), `scale` times as large, computed in tiles."""
        height, width = pixels.shape[:2]
        large = np.empty((height * self.scale, width * self.scale, 3), np.uint8)
        for top in _starts(height, self._tile):
            for left in _starts(width, self._tile):
                self._fill(large, pixels, left, top)
        return large

    def _fill(self, large: Pixels, pixels: Pixels, left: int, top: int) -> None:
        """Upscale the tile that begins here, with its surroundings, and write it without them."""
        height, width = pixels.shape[:2]
        right, bottom = min(left + self._tile, width), min(top + self._tile, height)
        out_left, out_top = max(0, left - OVERLAP), max(0, top - OVERLAP)
        part = pixels[out_top : min(bottom + OVERLAP, height), out_left : min(right + OVERLAP, width)]
        upscaled = self._upscaled(part)
        scale = self.scale
        inner = upscaled[
            (top - out_top) * scale : (bottom - out_top) * scale, (left - out_left) * scale : (right - out_left) * scale
        ]
        large[top * scale : bottom * scale, left * scale : right * scale] = inner

    def _upscaled(self, pixels: Pixels) -> Pixels:
        torch = self._torch
        batch = torch.from_numpy(np.ascontiguousarray(pixels)).to(self._device).permute(2, 0, 1)[None].float() / 255
        try:
            with torch.inference_mode():
                output = self._model(batch)
        except torch.OutOfMemoryError:
            raise ValueError("tile: out of GPU memory; lower it") from None
        image = output[0].clamp(0, 1).mul(255).round().to(torch.uint8).permute(1, 2, 0)
        result: Pixels = image.cpu().numpy()
        return result


def _starts(length: int, tile: int) -> range:
    return range(0, length, tile)


@contextmanager
def _without_torchvision() -> Iterator[None]:
    """Let spandrel be imported where torchvision is not installed, which is made for one version of PyTorch. Of its 40
    models two use it, a repair of faces and an inpainting; no upscaler does."""
    names = ("torchvision", "torchvision.transforms", "torchvision.transforms.functional")
    if importlib.util.find_spec("torchvision") or names[0] in sys.modules:
        yield
        return
    stand_ins = {name: types.ModuleType(name) for name in names}
    functional: Any = stand_ins[names[2]]
    functional.normalize = functional.rotate = functional.InterpolationMode = None
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name in names:  # others look there whether torchvision is installed
            sys.modules.pop(name, None)


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
