"""Write clips as MP4 files that every browser plays, and decode their frames, without torch.

PyAV is imported when it is needed: the page starts without it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from sd_scripts.formats.clips.mp4_header import read_mp4_header

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

MP4 = ".mp4"
CRF = "16"
"""Constant rate factor of x264: artefacts must be the model's, not the encoder's."""
BT709 = 1
"""FFmpeg's number for BT.709 as matrix, primaries and transfer. Without it players guess by the size of the frames."""
CODECS = ("h264", "hevc", "vp9", "av1")
"""Codecs that are decoded, for clips that come from elsewhere; FFmpeg has hundreds, and many are rarely tested."""
MOST_PIXELS = 4096 * 4096
"""Pixels of a frame that is decoded."""


def write_mp4(path: Path, frames: Iterable[Image.Image], fps: float, texts: Mapping[str, str] | None = None) -> None:
    """Write a clip as H.264 in an MP4 file, with `texts` as metadata by key and the header first, so that it plays
    while it is loaded. Raises OSError if it cannot be written.

    `path` need not end in .mp4. An odd side gets a copy of its last row or column, since colour has half the size.
    """
    import av

    try:
        _encode(path, frames, fps, texts or {})
    except av.FFmpegError as error:
        if isinstance(error, OSError):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        read_mp4_header(path)
    except ValueError as error:  # should FFmpeg ever not report a full disk while the header moves to the front
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error


def _encode(path: Path, frames: Iterable[Image.Image], fps: float, texts: Mapping[str, str]) -> None:
    import av

    options = {"movflags": "+faststart+use_metadata_tags"}
    with av.open(str(path), "w", format="mp4", options=options) as container:
        container.metadata.update(texts)
        stream: VideoStream | None = None
        for image in frames:
            frame = _padded(image)
            stream = stream or _add_stream(container, frame, fps)
            container.mux(stream.encode(_in_yuv(frame)))
        assert stream, "a clip needs a frame"
        container.mux(stream.encode(None))


def _add_stream(container: Any, frame: Image.Image, fps: float) -> VideoStream:
    rate = Fraction(fps).limit_denominator(1001)
    stream: VideoStream = container.add_stream("libx264", rate=rate, options={"crf": CRF, "preset": "fast", "bf": "0"})
    stream.width, stream.height = frame.size
    stream.pix_fmt = "yuv420p"
    context = stream.codec_context
    context.colorspace = context.color_primaries = context.color_trc = BT709
    context.color_range = 1  # limited, as in TV
    return stream


def _in_yuv(frame: Image.Image) -> VideoFrame:
    import av

    frames: Any = av.VideoFrame  # from_image has no types
    made: VideoFrame = frames.from_image(frame)
    return made.reformat(format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG")


def _padded(image: Image.Image) -> Image.Image:
    right, below = (side % 2 for side in image.size)
    if not right and not below:
        return image
    padded = Image.new("RGB", (image.width + right, image.height + below))
    for place in ((right, below), (right, 0), (0, below), (0, 0)):  # each leaves its last column or row uncovered
        padded.paste(image, place)
    return padded


def read_frames(path: Path, most: int | None = None) -> Generator[Image.Image, None, None]:
    """Yield the frames of a clip, at most `most` of them. Raises OSError or ValueError, one sentence, for a file that
    cannot be read as one."""
    import av

    header = read_mp4_header(path)  # FFmpeg opens anything, also a list of other files
    if header.width * header.height > MOST_PIXELS:
        raise ValueError(f"'{path}' has frames of {header.width}x{header.height} pixels, too large to show")
    try:
        with path.open("rb") as file, av.open(file, "r", format="mp4") as container:
            context = container.streams.video[0].codec_context
            if context.name not in CODECS:
                raise ValueError(f"'{path}' has video in {context.name}, which is not read; convert it to H.264")
            context.options = {"max_pixels": str(MOST_PIXELS)}  # its header may lie about the size
            frames: Iterator[Any] = container.decode(video=0)  # to_image has no types
            for frame in islice(frames, most):
                yield frame.to_image()
    except (av.FFmpegError, IndexError) as error:
        raise ValueError(f"'{path}' cannot be read as a clip: {error}") from error


def first_frame(path: Path) -> Image.Image:
    """Return the first frame of a clip. Raises OSError or ValueError, one sentence, like `read_frames`."""
    for frame in read_frames(path, 1):
        return frame
    raise ValueError(f"'{path}' has no frames")
