"""Decodes frames of a video file: seeks to the first one, and has one at a time in memory."""

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sd_scripts.formats.clips.hdr import HLG, PQ, to_srgb
from sd_scripts.formats.clips.probe import UnreadableClip, opened, rotation_of

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

Pixels = NDArray[np.uint8]
"""(H, W, 3), or (F, H, W, 3) for several frames."""
HD = 720
"""Height from which colours without a stated matrix are BT.709, as players have it."""
UNSPECIFIED = 2
"""Of a colour matrix, in ITU-T H.273."""
EARLIER_SECONDS = (0, 2, 20, 10_000)
"""How far before a frame decoding starts, in turn, if a file's key frames are not where its index has them."""


def decode(path: Path, times: Sequence[int]) -> Pixels:
    """Return the frames at these times (F, H, W, 3), as frames_at yields them."""
    return np.stack(list(frames_at(path, times)))


def frames_at(path: Path, times: Sequence[int]) -> Iterator[Pixels]:
    """Yield the frames (H, W, 3) of a video file at ascending times, as Probe.times has them, upright and in sRGB.

    A time that occurs several times gives its frame as often. Colours of HDR are mapped to SDR.
    Raises UnreadableClip if one cannot be decoded.
    """
    wanted = deque(times)
    with opened(path) as (container, stream):
        for frame in _decoded_from(container, stream, wanted[0]):
            if frame.pts is None or frame.pts < wanted[0]:
                continue
            if frame.is_corrupt:  # FFmpeg fills in the missing parts
                raise UnreadableClip(f"cannot be decoded: it is damaged at {float(frame.time or 0):.1f} seconds")
            pixels = _pixels(frame)
            while wanted and wanted[0] <= frame.pts:
                wanted.popleft()
                yield pixels
            if not wanted:
                return
    raise UnreadableClip(f"cannot be decoded whole: {len(wanted)} of {len(times)} frames are missing")


def _decoded_from(container: "InputContainer", stream: "VideoStream", time: int) -> "Iterator[VideoFrame]":
    """Yield frames from the last key frame before `time` on."""
    for seconds in EARLIER_SECONDS:
        earlier = time - int(seconds / (stream.time_base or 1))
        container.seek(max(earlier, stream.start_time or 0), stream=stream)
        frames = iter(container.decode(stream))
        first = next(frames, None)
        if first is None or first.pts is None or first.pts <= time:
            break
    if first is not None:
        yield first
        yield from frames


def _pixels(frame: "VideoFrame") -> Pixels:
    """Return a frame as sRGB, upright."""
    from av.video.reformatter import Colorspace

    matrix = None
    if frame.colorspace == UNSPECIFIED:
        matrix = Colorspace.ITU709 if frame.height >= HD else Colorspace.ITU601
    if frame.color_trc in (PQ, HLG):
        codes = frame.to_ndarray(format="rgb48le", src_colorspace=Colorspace.BT2020)
        pixels = to_srgb(codes.astype(np.uint16, copy=False), frame.color_trc)
    else:
        pixels = frame.to_ndarray(format="rgb24", src_colorspace=matrix).astype(np.uint8, copy=False)
    return np.ascontiguousarray(np.rot90(pixels, rotation_of(frame)))
