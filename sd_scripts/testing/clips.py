"""Draw short captioned clips of moving shapes: a dataset of clips without a download, for the demo and for tests."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from sd_scripts.testing import demo_images

Frames = NDArray[np.uint8]
"""(F, H, W, 3)"""
DIRECTIONS = {"right": (1, 0), "left": (-1, 0), "up": (0, -1), "down": (0, 1)}
FOLDER = "10_moving_shapes"
X264 = {"crf": "12", "preset": "veryfast"}


def captions() -> list[str]:
    """Return a caption for every shape in every colour, cycling through the directions."""
    directions = list(DIRECTIONS)
    plain = (caption.split(" on ")[0] for caption in demo_images.captions())
    return [f"{caption} moving {directions[number % 4]}" for number, caption in enumerate(plain)]


def draw(caption: str, size: tuple[int, int], frames: int) -> Frames:
    """Draw what one of `captions()` describes, at size (width, height): the shape crosses the middle."""
    still, _, direction = caption.partition(" moving ")
    width, height = size
    shape = np.array(demo_images.draw(f"{still} on a grey background", size))
    across, down = DIRECTIONS[direction]
    moved = []
    for number in range(frames):
        part = 0.4 * (number / max(frames - 1, 1) - 0.5)
        moved.append(np.roll(shape, (round(down * part * height), round(across * part * width)), axis=(0, 1)))
    return np.stack(moved)


def write_clip(
    path: Path,
    frames: Frames,
    fps: Fraction | int = 16,
    *,
    codec: str = "libx264",
    options: dict[str, str] | None = None,
    pixel_format: str = "yuv420p",
    times: Sequence[int] | None = None,
    time_base: Fraction | None = None,
    rotation: int = 0,
    keyframe_every: int = 12,
    file_options: dict[str, str] | None = None,
    **context: Any,
) -> Path:
    """Write frames as a clip in the format of the path's extension. `times`: presentation times in units of `time_base`
    (default: one frame each); `rotation`: degrees of the display matrix; `context`: attributes of the encoder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options=file_options or {}) as container:
        stream: Any = container.add_stream(codec, rate=fps, options=options or (X264 if codec == "libx264" else {}))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pixel_format
        stream.codec_context.gop_size = keyframe_every
        base = time_base or Fraction(1) / Fraction(fps)
        stream.codec_context.time_base = base
        for name, value in context.items():
            setattr(stream.codec_context, name, value)
        if rotation:
            stream.set_display_rotation(rotation)
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = times[number] if times else number
            frame.time_base = base
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def write_clips(
    folder: Path, size: tuple[int, int] = (128, 96), frames: int = 17, fps: int = 16, count: int | None = None
) -> Path:
    """Fill `folder/10_moving_shapes` with a .mp4 and a .txt for each caption, or the first `count`; return `folder`,
    the train_data_dir."""
    for caption in captions()[:count]:
        stem = folder / FOLDER / caption[2:].replace(" ", "_")
        write_clip(stem.with_suffix(".mp4"), draw(caption, size, frames), fps)
        stem.with_suffix(".txt").write_text(caption + "\n", encoding="utf-8")
    return folder
