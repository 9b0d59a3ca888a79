"""Look at an image once: make its thumbnail, and measure what makes it a poor training image. Without torch."""

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

from sd_scripts.data.sources.colour_profiles import profile_of, to_srgb
from sd_scripts.data.sources.images import Pixels, UnreadableImage, read_image
from sd_scripts.formats.clips.clip_files import frame_files, is_clip
from sd_scripts.formats.clips.frames import frames_at
from sd_scripts.formats.clips.probe import UnreadableClip, probe
from sd_scripts.formats.images.image_files import read_with
from sd_scripts.formats.regular_files import open_regular
from sd_scripts.machine.thumbnail_store import Measures

MEASURED_SIDE = 512
"""Longer side at which images are measured, so that numbers of large and small ones can be compared."""
THUMBNAIL_SIDE = 320
PREVIEW_SIDE = 1600
DARK = 24
"""Brightest value of a bar's pixels; JPEG makes black a little brighter."""
THINNEST_BAR, WIDEST_BAR = 0.015, 0.45
"""Shares of a side between which a black edge is a bar."""
COLOURS = 4
"""Cells of an image whose colours are compared, across and down."""
MOST_COLOUR = 32
"""Of 255: by how much a cell's red, green or blue may differ where images look alike."""
BITS = 16
"""Bytes of a likeness before its colours."""
Grey = NDArray[np.uint8]
FindFaces = Callable[[Pixels], Sequence[tuple[int, int, int, int]]]
"""Finds the left, top, width and height of each face in an image (H, W, 3), in pixels."""


def look_at(path: Path, find_faces: FindFaces | None = None) -> tuple[bytes, Measures]:
    """Return the thumbnail of an image, or of a clip's first frame, as a JPEG, and what is measured on it. Raises
    UnreadableImage."""
    pixels = shrunk(_decoded(path), MEASURED_SIDE)
    height, width = pixels.shape[:2]
    boxes = find_faces(pixels) if find_faces else None
    grey: Grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY).astype(np.uint8, copy=False)
    measures = Measures(
        digest=digest_of(path),
        likeness=likeness(pixels, grey),
        sharpness=round(sharpness(grey), 1),
        bars=black_bars(grey),
        faces=None if boxes is None else tuple((x / width, y / height, w / width, h / height) for x, y, w, h in boxes),
    )
    return as_jpeg(shrunk(pixels, THUMBNAIL_SIDE), 82), measures


def preview(path: Path) -> bytes:
    """Return an image as training decodes it, or a clip's first frame, at most 1600 pixels long, as a JPEG. Raises
    UnreadableImage."""
    return as_jpeg(shrunk(_whole(path), PREVIEW_SIDE), 90)


def digest_of(path: Path) -> str:
    """Return a digest of a file's bytes, for a folder of frames of the first. Raises UnreadableImage."""
    path = _first_frame_file(path)
    digest = hashlib.blake2b(digest_size=16)
    try:
        with open_regular(path) as file:
            while part := file.read(1 << 20):
                digest.update(part)
    except OSError as error:
        raise UnreadableImage(path, error) from error
    return digest.hexdigest()


def likeness(pixels: Pixels, grey: Grey) -> str:
    """Return 128 bits, for which of two neighbouring cells of an 8x8 grid is brighter, across and down, and the colours
    of a 4x4 grid: in an image with a plain background most bits depend on the background alone."""
    cells = cv2.resize(grey, (9, 9), interpolation=cv2.INTER_AREA).astype(np.int16)
    across, down = cells[:8, 1:] > cells[:8, :-1], cells[1:, :8] > cells[:-1, :8]
    bits = np.packbits(np.concatenate([across, down]).ravel())
    colours = cv2.resize(pixels, (COLOURS, COLOURS), interpolation=cv2.INTER_AREA).astype(np.uint8)
    return bits.tobytes().hex() + colours.tobytes().hex()


def alike(likenesses: Sequence[str], distance: int) -> list[list[int]]:
    """Return groups of indices: all of a group differ from one of them in at most `distance` bits, and little in
    colour. An image that resembles two is in the group of the one that more images resemble."""
    if len(likenesses) < 2:
        return []
    seen = np.array([list(bytes.fromhex(each)) for each in likenesses], dtype=np.uint8)
    bits, colours = np.ascontiguousarray(seen[:, :BITS]).view(np.uint64), seen[:, BITS:].astype(np.int16)
    near: list[list[int]] = [[] for _ in likenesses]
    for index in range(len(bits) - 1):
        apart = np.bitwise_count(bits[index + 1 :] ^ bits[index]).sum(axis=1)
        others = np.flatnonzero(apart <= distance) + index + 1
        for other in others[np.abs(colours[others] - colours[index]).max(axis=1) <= MOST_COLOUR]:
            near[index].append(int(other))
            near[int(other)].append(index)
    groups, grouped = [], np.zeros(len(bits), dtype=bool)
    for index in sorted(range(len(bits)), key=lambda each: -len(near[each])):
        group = [each for each in (index, *near[index]) if not grouped[each]]
        if not grouped[index] and len(group) > 1:
            grouped[group] = True
            groups.append(sorted(group))
    return sorted(groups)


def sharpness(grey: Grey) -> float:
    """Return the variance of the Laplacian, which is low where nothing has a sharp edge."""
    return float(cv2.Laplacian(grey, cv2.CV_32F).var())


def black_bars(grey: Grey) -> tuple[float, float, float, float]:
    """Return the shares of the image that are black bars: left, top, right, bottom. A dark edge that fades into the
    image is none."""
    sides = (grey.T, grey, grey.T[::-1], grey[::-1])
    left, top, right, bottom = (round(bar_share(each), 4) for each in sides)
    return left, top, right, bottom


def bar_share(rows: Grey) -> float:
    """Return the share of the first rows that are black, if they end at an edge."""
    bright = (rows > DARK).mean(axis=1)
    lit = np.flatnonzero(bright > 0.02)
    if not len(lit):
        return 0.0  # all is black
    first = int(lit[0])
    share = first / len(rows)
    ends_at_edge = bright[min(first + 1, len(rows) - 1)] > 0.5
    return share if THINNEST_BAR <= share <= WIDEST_BAR and ends_at_edge else 0.0


def shrunk(pixels: Pixels, longest: int) -> Pixels:
    """Return an image whose sides are at most `longest`."""
    height, width = pixels.shape[:2]
    scale = longest / max(height, width)
    if scale >= 1:
        return pixels
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return cv2.resize(pixels, size, interpolation=cv2.INTER_AREA).astype(np.uint8, copy=False)


def as_jpeg(pixels: Pixels, quality: int) -> bytes:
    """Return an image (H, W, 3) as a JPEG without any metadata."""
    _, encoded = cv2.imencode(".jpg", pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    return encoded.tobytes()


def _decoded(path: Path) -> Pixels:
    """Return an image's pixels; a JPEG is decoded smaller, which takes a fraction of the time."""
    path = _first_frame_file(path)
    with contextlib.suppress(Exception):  # broken files raise different errors; read_image names the problem
        if not is_clip(path) and (pixels := read_with(path, _small_jpeg)) is not None:
            return pixels
    return _whole(path)


def _whole(path: Path) -> Pixels:
    """Return the pixels of an image, or of a clip's first frame, at full size. Raises UnreadableImage."""
    if not is_clip(path):
        return read_image(_first_frame_file(path))[0]
    try:
        first: Pixels = next(iter(frames_at(path, probe(path).times[:1])))
        return first
    except UnreadableClip as error:
        raise UnreadableImage(path, str(error).removeprefix("cannot be read: ")) from error


def _first_frame_file(path: Path) -> Path:
    """Return the first image of a folder of frames; any other path unchanged."""
    return next(iter(frame_files(path)), path) if path.is_dir() else path


def _small_jpeg(image: Image.Image) -> Pixels | None:
    if image.format not in ("JPEG", "MPO"):
        return None
    profile = profile_of(image)
    scale = MEASURED_SIDE / max(image.size)
    image.draft(None, (int(image.width * scale), int(image.height * scale)))
    with contextlib.suppress(Exception):  # of a broken EXIF block; then it is not rotated, as in training
        if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
            image = ImageOps.exif_transpose(image)
    image = to_srgb(image, profile)
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))
