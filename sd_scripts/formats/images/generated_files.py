"""Read what is known of a generated file, an image or a clip, for the page and its tools: size, length, parameters."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sd_scripts.formats.clips.media_types import MEDIA_TYPES as CLIP_TYPES
from sd_scripts.formats.clips.mp4 import MP4, first_frame
from sd_scripts.formats.clips.mp4_header import read_mp4_header
from sd_scripts.formats.images.image_files import open_image, texts_of
from sd_scripts.formats.images.image_folders import MEDIA_TYPES
from sd_scripts.formats.images.image_parameters import read_chunks

GENERATED_TYPES = {**MEDIA_TYPES, MP4: CLIP_TYPES[MP4]}
"""Extension of a file that scripts generate, or did, or that users put next to them -> its media type."""
POSTER_SIDE = 768
"""Longer side of the image that stands for a clip until it plays."""


@dataclass(frozen=True, kw_only=True)
class Generated:
    """A generated image or clip."""

    width: int
    height: int
    frames: int = 1
    fps: float = 0
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters that it was generated with. Raises ValueError, one sentence, if it has none."""
        return read_chunks(self.texts)


def read_generated(path: Path) -> Generated:
    """Read an image or a clip, as its extension says, without its pixels. Raises OSError for a file that is missing or
    not regular, and whatever else Pillow raises for a broken one."""
    if path.suffix.lower() == MP4:
        clip = read_mp4_header(path)
        return Generated(width=clip.width, height=clip.height, frames=clip.frames, fps=clip.fps, texts=clip.texts)
    with open_image(path) as image:
        return Generated(width=image.width, height=image.height, texts=texts_of(image))


def poster(path: Path) -> bytes:
    """Return the first frame of a clip as a JPEG image. Raises OSError or ValueError, one sentence, if it cannot be
    read."""
    image = first_frame(path)
    image.thumbnail((POSTER_SIDE, POSTER_SIDE))
    encoded = io.BytesIO()
    image.save(encoded, format="JPEG", quality=85)
    return encoded.getvalue()
