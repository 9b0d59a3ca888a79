"""Samples of a run: an image, or a clip of several frames."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

FPS = 16


@dataclass(frozen=True, kw_only=True)
class Media:
    """A decoded sample."""

    frames: Tensor
    """(F, H, W, 3) uint8 on the CPU; a single frame is an image."""
    fps: float = FPS

    @classmethod
    def of(cls, pixels: Tensor, fps: float = FPS) -> "Media":
        """Return the image (3, H, W) or the clip (3, F, H, W) of pixels in 0..1."""
        frames = (pixels * 255).round().to(torch.uint8).movedim(0, -1).cpu()
        return cls(frames=frames.reshape(-1, *frames.shape[-3:]), fps=fps)

    @property
    def kind(self) -> str:
        return "image" if len(self.frames) == 1 else "clip"

    @property
    def suffix(self) -> str:
        return ".png" if self.kind == "image" else ".webp"

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.frames.shape[2], self.frames.shape[1]

    def write(self, path: Path, texts: Mapping[str, str] | None = None) -> None:
        """Write the file in the format of `suffix`, whatever the name: browsers show both as images. `texts` become
        text chunks of a PNG, by keyword; a clip has none."""
        first, *rest = (Image.fromarray(frame.numpy()) for frame in self.frames)
        if not rest:
            chunks = PngInfo()
            for keyword, text in (texts or {}).items():
                chunks.add_text(keyword, text)
            first.save(path, format="PNG", pnginfo=chunks)
            return
        duration = round(1000 / self.fps)
        first.save(path, format="WEBP", save_all=True, append_images=rest, duration=duration, loop=0, quality=90)
