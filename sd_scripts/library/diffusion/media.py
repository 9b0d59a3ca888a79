"""Samples of a run: an image, or a clip of several frames."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from sd_scripts.formats.clips.mp4 import MP4, write_mp4

FPS = 16


@dataclass(frozen=True, kw_only=True)
class Media:
    """A decoded sample."""

    frames: Tensor
    """(F, H, W, 3) uint8 on the CPU; a single frame is an image."""
    fps: float = FPS

    @classmethod
    def of(cls, pixels: Tensor, fps: float | None = None) -> "Media":
        """Return the image (3, H, W) or the clip (3, F, H, W) of pixels in 0..1."""
        # frame by frame, since the whole clip in float32 takes gigabytes of GPU memory
        frames = [
            (frame * 255).round().to(torch.uint8).cpu() for frame in pixels.reshape(3, -1, *pixels.shape[-2:]).unbind(1)
        ]
        return cls(frames=torch.stack(frames).movedim(1, -1).contiguous(), fps=fps or FPS)

    @property
    def kind(self) -> str:
        return "image" if len(self.frames) == 1 else "clip"

    @property
    def suffix(self) -> str:
        return ".png" if self.kind == "image" else MP4

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.frames.shape[2], self.frames.shape[1]

    @property
    def facts(self) -> dict[str, str | int | float]:
        """Kind, size and length, as events report them."""
        width, height = self.size
        length = {"frames": len(self.frames), "fps": self.fps} if self.kind == "clip" else {}
        return {"media": self.kind, "width": width, "height": height, **length}

    @property
    def still(self) -> Image.Image:
        """One image of it: of a clip the first, middle and last frame in a row."""
        last = len(self.frames) - 1
        shown = sorted({0, last // 2, last})
        return _image(torch.cat([self.frames[number] for number in shown], dim=1))

    def write(self, path: Path, texts: Mapping[str, str] | None = None) -> None:
        """Write the file in the format of `suffix`, whatever the name. `texts` become text chunks of a PNG by keyword,
        and metadata of an MP4 by key. Raises OSError if it cannot be written."""
        if self.kind == "clip":
            write_mp4(path, map(_image, self.frames), self.fps, texts)
            return
        chunks = PngInfo()
        for keyword, text in (texts or {}).items():
            chunks.add_text(keyword, text)
        _image(self.frames[0]).save(path, format="PNG", pnginfo=chunks)


def _image(frame: Tensor) -> Image.Image:
    return Image.fromarray(frame.numpy())
