"""Reads what training needs to know of a clip before it is decoded: size, rate, and the time of every frame."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sd_scripts.formats.clips.clip_files import frame_files

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

TAGGED_DURATION = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)")
CUT_SECONDS = Fraction(1, 2)
"""Seconds missing at the end of a file without an index for which it counts as cut off."""
ONLY_VIDEO_FILES = {
    "format_whitelist": "mov,mp4,matroska,webm,avi,flv,asf,mpeg,mpegvideo,mpegts",
    "protocol_whitelist": "file",
}
"""Options of FFmpeg: a playlist that is named like a video could name other files, and addresses on the web."""
ONE_SECOND = Fraction(1)
VARIABLE = 1.5
"""How much longer than another a frame is shown in a clip of variable rate; less is rounding to the time base."""
HDR_CURVES = (16, 18)
"""PQ and HLG in ITU-T H.273."""


class UnreadableClip(ValueError):
    """Raised for a clip that cannot be read; the message follows its name."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A clip: a video file, or a folder of images."""

    size: tuple[int, int]
    """Width and height as shown: upright, with square pixels."""
    times: Sequence[int]
    """When each frame is shown, ascending, in units of time_base; a range if they are evenly spaced. Of a folder, the
    index of each image."""
    time_base: Fraction = ONE_SECOND
    """Seconds."""
    fps: float | None = None
    """Frames per second on average; None if nothing states it, as for a folder."""
    is_hdr: bool = False
    """Whether its colours are PQ or HLG."""

    @property
    def frames(self) -> int:
        return len(self.times)

    @property
    def is_even(self) -> bool:
        """Whether all frames are shown equally long, to the unit."""
        return isinstance(self.times, range)

    @property
    def is_variable(self) -> bool:
        """Whether some frames are shown much longer than others."""
        steps = [after - before for before, after in pairwise(self.times)]
        return not self.is_even and max(steps) > VARIABLE * min(steps)


def probe(path: Path) -> Probe:
    """Return the facts of a clip. Raises UnreadableClip, one sentence, if it is broken, cut off, or has no image.

    Only the first frame is decoded. The index of the file gives the times; files without one are read packet by packet.
    """
    return _probe_folder(path) if path.is_dir() else _probe_file(path)


def _probe_folder(folder: Path) -> Probe:
    from PIL import Image

    from sd_scripts.formats.images.image_files import read_with

    files = frame_files(folder)
    if not files:
        raise UnreadableClip("has no images")

    def size_of(image: Image.Image) -> tuple[int, int]:
        turned = image.getexif().get(0x0112, 1) >= 5
        return (image.height, image.width) if turned else image.size

    try:
        size = read_with(files[0], size_of)
    except Exception as error:  # broken images raise different errors by format
        raise UnreadableClip(f"cannot be read: its first frame {files[0].name} is broken") from error
    return Probe(size=size, times=range(len(files)))


def _probe_file(path: Path) -> Probe:
    with opened(path) as (container, stream):
        times = _indexed_times(path, stream) or _demuxed_times(container, stream)
        if not times:
            raise UnreadableClip("has no frames")
        base = stream.time_base or ONE_SECOND
        container.seek(times[0], stream=stream)
        frame = next(iter(container.decode(stream)), None)
        if frame is None or frame.pts is None:
            raise UnreadableClip("cannot be decoded")
        if isinstance(times, range) and frame.pts != times[0]:  # an avi has decoding times alone
            times = range(frame.pts, frame.pts + len(times) * times.step, times.step)
        return Probe(
            size=_shown_size(frame, stream),
            times=times,
            time_base=base,
            fps=_rate(times, base) or (float(stream.average_rate) if stream.average_rate else None),
            is_hdr=frame.color_trc in HDR_CURVES,
        )


@contextlib.contextmanager
def opened(path: Path) -> "Iterator[tuple[InputContainer, VideoStream]]":
    """Open a video file and find its stream of images. Raises UnreadableClip for what PyAV raises in the block, too."""
    import av
    from av.stream import Disposition

    try:
        with av.open(str(path), options=ONLY_VIDEO_FILES, metadata_errors="replace") as container:
            streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
            if not streams:
                raise UnreadableClip("has no images, only sound" if container.streams.audio else "has no images")
            yield container, streams[0]
    except av.error.FFmpegError as error:
        if not path.exists():
            raise UnreadableClip("is gone") from error
        if not path.stat().st_size:
            raise UnreadableClip("is empty") from error
        raise UnreadableClip(f"cannot be read: it is damaged, cut off, or not a video ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", "") or error)


def rotation_of(frame: "VideoFrame") -> int:
    """Return by how many quarter turns, counterclockwise, a frame must be turned to be upright."""
    return round(frame.rotation / 90) % 4


def _shown_size(frame: "VideoFrame", stream: "VideoStream") -> tuple[int, int]:
    """Return the size of a frame after its display matrix and its pixel aspect ratio."""
    aspect = stream.sample_aspect_ratio or ONE_SECOND
    size = max(1, round(frame.width * aspect)), frame.height
    return (size[1], size[0]) if rotation_of(frame) % 2 else size


def _indexed_times(path: Path, stream: "VideoStream") -> Sequence[int]:
    """Return the times of a file whose index lists evenly spaced frames; empty for any other.

    The index has decoding times, which are the times of display in a different order if they are evenly spaced.
    """
    entries = list(stream.index_entries)
    if not entries or len(entries) != stream.frames or any(entry.is_discard for entry in entries):
        return ()
    there = path.stat().st_size
    if missing := sum(entry.pos + entry.size > there for entry in entries):
        raise UnreadableClip(f"is cut off: {missing} of its {len(entries)} frames are missing")
    steps = {after.timestamp - before.timestamp for before, after in pairwise(entries)} or {1}
    step = steps.pop()
    if steps or step <= 0 or stream.start_time is None:
        return ()
    return range(stream.start_time, stream.start_time + step * len(entries), step)


def _demuxed_times(container: "InputContainer", stream: "VideoStream") -> Sequence[int]:
    """Return the times of all frames from their packets, none of which is kept. Where some have no
    time, all frames are decoded. Of frames with the same time, as some of mpg, the first counts."""
    found = {packet.pts for packet in container.demux(stream) if packet.size and not packet.is_discard}
    if None in found:
        container.seek(stream.start_time or 0, stream=stream)
        found = {frame.pts for frame in container.decode(stream)}
    times = sorted(time for time in found if time is not None)
    _check_end(container, stream, times)
    steps = {after - before for before, after in pairwise(times)}
    if len(times) == 1:
        return range(times[0], times[0] + 1)
    return range(times[0], times[-1] + 1, *steps) if len(steps) == 1 else tuple(times)


def _check_end(container: "InputContainer", stream: "VideoStream", times: Sequence[int]) -> None:
    """Raise UnreadableClip if a file has fewer frames than it states, or ends earlier."""
    if stream.frames and len(times) < stream.frames - stream.frames // 50:
        raise UnreadableClip(f"is cut off: {stream.frames - len(times)} of its {stream.frames} frames are missing")
    stated = _stated_seconds(container, stream)
    if not (stated and times and stream.time_base):
        return
    end = (times[-1] - (stream.start_time or 0)) * stream.time_base
    if stated - end > CUT_SECONDS + 2 / Fraction(stream.average_rate or 1):
        raise UnreadableClip(f"is cut off: it ends after {float(end):.1f} of {float(stated):.1f} seconds")


def _stated_seconds(container: "InputContainer", stream: "VideoStream") -> Fraction | None:
    """Return how long the images last as the file states it, None if it does not."""
    if match := TAGGED_DURATION.match(stream.metadata.get("DURATION", "")):
        hours, minutes, seconds = match.groups()
        return Fraction(int(hours) * 3600 + int(minutes) * 60) + Fraction(seconds)
    only_images = not container.streams.audio
    return Fraction(container.duration, 1_000_000) if container.duration and only_images else None


def _rate(times: Sequence[int], base: Fraction) -> float | None:
    seconds = (times[-1] - times[0]) * base
    return float((len(times) - 1) / seconds) if seconds else None


def as_json(found: Probe) -> list[Any]:
    """Return a probe as JSON values."""
    times = found.times
    listed = [times.start, times.stop, times.step] if isinstance(times, range) else None
    base = [found.time_base.numerator, found.time_base.denominator]
    return [*found.size, base, found.fps, found.is_hdr, listed, None if listed else list(times)]


def from_json(values: Sequence[Any]) -> Probe:
    """Return the probe of `as_json`."""
    width, height, base, fps, is_hdr, even, times = values
    return Probe(
        size=(width, height),
        times=range(*even) if even else tuple(times),
        time_base=Fraction(*base),
        fps=fps,
        is_hdr=is_hdr,
    )
