"""Load images and masks: decode, resize and crop to the bucket, augment. Sizes are (width, height)."""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from sd_scripts.data.plan.buckets import BucketFit, Size
from sd_scripts.data.read_ahead import read_ahead
from sd_scripts.data.sources.colour_profiles import changes_colours, profile_of, to_srgb
from sd_scripts.formats.images.image_files import png_chunk, read_with

cv2.setNumThreads(0)  # the loader's workers and the caching threads are the parallelism

RESIZE_FILTERS = {
    "nearest": (cv2.INTER_NEAREST, Image.Resampling.NEAREST),
    "bilinear": (cv2.INTER_LINEAR, Image.Resampling.BILINEAR),
    "linear": (cv2.INTER_LINEAR, Image.Resampling.BILINEAR),
    "bicubic": (cv2.INTER_CUBIC, Image.Resampling.BICUBIC),
    "cubic": (cv2.INTER_CUBIC, Image.Resampling.BICUBIC),
    "area": (cv2.INTER_AREA, Image.Resampling.BOX),
    "lanczos": (None, Image.Resampling.LANCZOS),
}
"""Names of resize_interpolation, with the filters of OpenCV and of Pillow, which can resize a region of an image.
Lanczos is always Pillow's, which smooths while shrinking as OpenCV's does not."""
MAX_RESIZED_AREA = 16
"""Largest area of a resized image, in bucket areas: a more elongated image is cropped first, since all of it might not
fit into memory."""

DECODER = 3
"""Incremented when files are decoded differently: caches that were valid before are checked once more."""

THREADS, AHEAD = 8, 64
Result = TypeVar("Result")
Pixels = NDArray[np.uint8]
"""(H, W, 3) for an image, (H, W) for a mask."""

LAST_BYTES = {"PNG": b"IEND\xaeB`\x82", "JPEG": b"\xff\xd9", "MPO": b"\xff\xd9"}
"""How the pixels of these formats end. A BMP has no end marker; others are read whole at opening."""
TRAILER = 2**16
"""Bytes behind the pixels in which that end is looked for, such as a phone's notes or a second image."""

_EXIF_ORIENTATION = 0x0112
_EXIF_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The transposition that brings an image upright, by its EXIF orientation."""
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
"""Pillow's 16-bit grey modes, whose values it clips at 255 on conversion."""


class UnreadableImage(ValueError):
    """Raised for an image that cannot be decoded; the message names it."""

    def __init__(self, path: Path, why: object):
        super().__init__(f"{path} cannot be read: {_reason(path, why)}")
        self.path = path


def _reason(path: Path, why: object) -> object:
    """Return why a file cannot be read, without Pillow's repetition of its name."""
    if isinstance(why, OSError) and why.strerror:
        return why.strerror
    if not isinstance(why, UnidentifiedImageError):
        return why
    return "not an image in a known format" if path.stat().st_size else "the file is empty"


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """A subset's augmentation options; fields are named like the options."""

    color_aug: bool = False
    flip_aug: bool = False
    random_crop: bool = False
    face_crop_aug_range: tuple[float, float] | None = None
    resize_interpolation: str | None = None
    alpha_mask: bool = False

    def __post_init__(self) -> None:
        bounds = self.face_crop_aug_range
        if bounds is not None and not 0 < bounds[0] <= bounds[1]:
            raise ValueError(
                f"face_crop_aug_range: {bounds[0]},{bounds[1]} is not a range of positive numbers, lowest first"
            )


@dataclass(frozen=True, kw_only=True)
class FaceBox:
    """A face's centre and size in image pixels, from the last four fields of a name like `x_120_80_60_60.png`."""

    x: int
    y: int
    width: int
    height: int

    @classmethod
    def of(cls, path: Path) -> "FaceBox | None":
        fields = path.stem.split("_")[-4:]
        if len(fields) < 4 or len(path.stem.split("_")) < 5 or not all(field.isdecimal() for field in fields):
            return None
        x, y, width, height = map(int, fields)
        return cls(x=x, y=y, width=width, height=height) if max(width, height) else None


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Resize to `resized`, then crop the bucket at (left, top)."""

    resized: Size
    left: int
    top: int


def read_header(path: Path) -> tuple[Size, bool]:
    """Return width and height after EXIF rotation, and whether the image is animated. Pixels are decoded only where
    the file may be cut off. Raise UnreadableImage if anything fails."""

    def header(image: Image.Image) -> tuple[Size, bool]:
        width, height = image.size
        if not _ends_whole(image):
            image.load()  # raises if pixels are missing; most files with other bytes at their end have all
        # the further frames of a camera's MPO are previews and views
        animated = image.format != "MPO" and getattr(image, "n_frames", 1) > 1
        return (height, width) if _orientation(image, path) >= 5 else (width, height), animated

    return _read(path, header)


def read_size(path: Path) -> Size:
    """Return the size as read_header does."""
    return read_header(path)[0]


def read_image(path: Path, *, alpha: bool = False) -> tuple[Pixels, Pixels | None]:
    """Return colours (H, W, 3) in sRGB and, with `alpha`, opacity (H, W), after EXIF rotation.

    Without `alpha`, transparent pixels become white, so that the colours hidden there are not trained.
    """

    def decode(opened: Image.Image) -> tuple[Pixels, Pixels | None]:
        image = upright_srgb(opened, path)
        return _with_opacity(image) if alpha else (np.array(_on_white(image)), None)

    return _read(path, decode)


def upright_srgb(opened: Image.Image, path: Path) -> Image.Image:
    """Return the colours of an open image in sRGB, after EXIF rotation, in 8 bits."""
    profile = profile_of(opened)  # before the pixels are read, which closes the file
    return to_srgb(_upright(opened, path), profile)


def read_mask(path: Path) -> Pixels:
    """Return the red channel (H, W) of a mask, as other trainers do, ignoring its transparency and colour profile."""

    def red(opened: Image.Image) -> Pixels:
        image = _upright(opened, path)
        if image.mode in ("1", "L"):  # a quarter of the memory: masks of large images are 100 MB
            return np.array(image.convert("L"))
        return np.ascontiguousarray(_with_opacity(image)[0][..., 0])

    return _read(path, red)


def read_each(read: Callable[[Path], Result], paths: Iterable[Path]) -> Iterator[tuple[Path, Result | UnreadableImage]]:
    """Yield each path with what `read` returns for it, or why it is unreadable."""

    def attempt(path: Path) -> tuple[Path, Result | UnreadableImage]:
        try:
            return path, read(path)
        except UnreadableImage as error:
            return path, error

    with ThreadPoolExecutor(THREADS) as pool:  # reading is I/O bound
        yield from read_ahead(pool, attempt, paths, AHEAD)


def is_converted(path: Path) -> bool:
    """Return whether the colour profile of an image changes its colours."""
    try:
        return _read(path, changes_colours)
    except UnreadableImage:
        return False


def is_too_elongated(fit: BucketFit) -> bool:
    """Return whether only a small part of an image is visible in its bucket."""
    return math.prod(fit.resized) > MAX_RESIZED_AREA * math.prod(fit.bucket.size)


def draw_flip(augmentation: Augmentation, random: Random) -> bool:
    """Decide whether to flip: the first draw for an image, so that cached latents flip exactly as pixels would."""
    return augmentation.flip_aug and random.random() < 0.5


def prepare_image(
    path: Path, mask_path: Path | None, fit: BucketFit, augmentation: Augmentation, random: Random
) -> tuple[Pixels, Pixels | None]:
    """Return one image in its bucket (H, W, 3), and its mask (H, W), where 255 means full weight; not yet flipped."""
    pixels, mask = read_image(path, alpha=augmentation.alpha_mask and mask_path is None)
    if mask_path is not None:
        mask = read_mask(mask_path)
    bucket = fit.bucket.size
    place = place_of(path, (pixels.shape[1], pixels.shape[0]), fit, augmentation, random)
    opacity = mask if mask_path is None else None
    pixels = _resize_visible(pixels, opacity, place, bucket, augmentation.resize_interpolation)
    if augmentation.color_aug:
        pixels = vary_colour(pixels, random)
    if mask is not None:
        mask = resize_and_crop(mask, place, bucket, augmentation.resize_interpolation)
    return pixels, mask


def place_of(path: Path, size: Size, fit: BucketFit, augmentation: Augmentation, random: Random) -> Placement:
    """Return how an image or a clip of this size is resized and cropped in one step."""
    face = FaceBox.of(path) if augmentation.face_crop_aug_range else None
    if face:
        return _place_on_face(size, face, fit.bucket.size, augmentation, random)
    return _place(fit, augmentation, random)


def prepare_mask(path: Path, mask_path: Path | None, fit: BucketFit, augmentation: Augmentation) -> Pixels | None:
    """Return only the mask, (H, W), centre-cropped like the cached latents it belongs to."""
    if mask_path is not None:
        mask = read_mask(mask_path)
    elif augmentation.alpha_mask:
        mask = read_image(path, alpha=True)[1]  # type: ignore[assignment]
    else:
        return None
    place = _place(fit, Augmentation(), Random(0))
    cropped: Pixels = resize_and_crop(mask, place, fit.bucket.size, augmentation.resize_interpolation)
    return cropped


def resize(pixels: Pixels, size: Size, interpolation: str | None) -> Pixels:
    """Resize with area averaging to shrink and Lanczos to enlarge, unless `interpolation` names a filter."""
    height, width = pixels.shape[:2]
    if (width, height) == size:
        return pixels
    if interpolation is None:
        interpolation = "area" if width >= size[0] and height >= size[1] else "lanczos"
    code, of_pillow = RESIZE_FILTERS[interpolation]
    if code is None:
        return np.array(Image.fromarray(pixels).resize(size, of_pillow))
    return cv2.resize(pixels, size, interpolation=code).astype(np.uint8, copy=False)


def vary_colour(pixels: Pixels, random: Random) -> Pixels:
    """Shift the hue of one image in three by up to 16 degrees, or apply a gamma of 0.95 to 1.05."""
    if random.random() > 0.33:
        return pixels
    if random.random() < 0.5:
        hsv = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV)  # hue in half degrees, 0..179
        hsv[..., 0] = (hsv[..., 0].astype(np.int16) + round(random.uniform(-8, 8))) % 180
        return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB).astype(np.uint8, copy=False)
    curve = 255 * (np.arange(256) / 255) ** random.uniform(0.95, 1.05)
    return np.rint(curve).astype(np.uint8)[pixels]


def _read(path: Path, read: Callable[[Image.Image], Result]) -> Result:
    """Return the result of `read` for an open image; raise UnreadableImage if that fails."""
    try:
        return read_with(path, read)
    except Exception as error:  # broken files raise different errors by format
        raise UnreadableImage(path, error) from error


def _ends_whole(image: Image.Image) -> bool:
    """Return whether the pixels in the file of an open image end, as far as its last bytes show."""
    file = getattr(image, "fp", None)
    last = LAST_BYTES.get(image.format or "")
    if file is None or last is None:
        return image.format != "BMP"
    place, size = file.tell(), file.seek(0, os.SEEK_END)
    try:
        for length in (len(last), TRAILER):
            file.seek(max(size - length, 0))
            if last in file.read():
                return True
        return False
    finally:
        file.seek(place)


def _upright(image: Image.Image, path: Path) -> Image.Image:
    """Return an image after EXIF rotation, in 8 bits."""
    if (turn := _EXIF_TRANSPOSES.get(_orientation(image, path))) is not None:
        image = image.transpose(turn)
    return _eight_bits(image)


def _with_opacity(image: Image.Image) -> tuple[Pixels, Pixels]:
    pixels = np.array(image.convert("RGBA"))
    return np.ascontiguousarray(pixels[..., :3]), np.ascontiguousarray(pixels[..., 3])


def _orientation(image: Image.Image, path: Path) -> int:
    """Return the EXIF orientation, 1 to 8; 1 where its EXIF is broken."""
    try:
        if image.format != "PNG":
            orientation: int = image.getexif().get(_EXIF_ORIENTATION, 1)
            return orientation
        # PngImageFile.getexif decodes the whole image, since the EXIF may follow the pixels
        found: int | None = Image.Image.getexif(image).get(_EXIF_ORIENTATION)
        if found is not None:
            return found
        return 1 if "exif" in image.info else _orientation_behind_pixels(path)
    except Exception:  # a broken EXIF block raises anything; the pixels may be intact
        return 1


def _orientation_behind_pixels(path: Path) -> int:
    """Return the orientation from a PNG's eXIf chunk."""
    with path.open("rb") as file:
        exif = Image.Exif()
        exif.load(png_chunk(file, b"eXIf"))
        orientation: int = exif.get(_EXIF_ORIENTATION, 1)
        return orientation


def _eight_bits(image: Image.Image) -> Image.Image:
    """Reduce 16-bit grey to its high byte, as Pillow does with 16-bit colours; return other images unchanged."""
    if image.mode not in SIXTEEN_BITS:
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def _on_white(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    if image.getchannel("A").getextrema() == (255, 255):
        return image.convert("RGB")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _place(fit: BucketFit, augmentation: Augmentation, random: Random) -> Placement:
    """Return a centre crop, or a random one with random_crop."""
    surplus = [have - need for have, need in zip(fit.resized, fit.bucket.size, strict=True)]
    left, top = (random.randint(0, more) if augmentation.random_crop else more // 2 for more in surplus)
    return Placement(resized=fit.resized, left=left, top=top)


def _place_on_face(size: Size, face: FaceBox, bucket: Size, augmentation: Augmentation, random: Random) -> Placement:
    """Centre the crop on the face, with the bucket's shorter side face_crop_aug_range times the face.

    The image is enlarged only as far as needed to cover the bucket.
    """
    assert augmentation.face_crop_aug_range is not None
    covering = max(bucket[0] / size[0], bucket[1] / size[1])
    wanted = min(bucket) / (max(face.width, face.height) * random.uniform(*augmentation.face_crop_aug_range))
    scale = max(covering, min(wanted, 1.0))
    resized = [max(need, int(side * scale + 0.5)) for side, need in zip(size, bucket, strict=True)]
    corner = []
    for middle, have, need in zip((face.x, face.y), resized, bucket, strict=True):
        start = int(middle * scale) - need // 2
        if augmentation.random_crop:  # a sum of two draws favours the centre
            start += random.randint(-need // 4, need // 4) + random.randint(-need // 4, need // 4)
        corner.append(max(0, min(start, have - need)))
    return Placement(resized=(resized[0], resized[1]), left=corner[0], top=corner[1])


def resize_and_crop(pixels: Any, place: Placement, bucket: Size, interpolation: str | None) -> Any:
    """Return the part of an image or a mask that is visible in its bucket."""
    if math.prod(place.resized) > MAX_RESIZED_AREA * math.prod(bucket):
        return _resize_region(pixels, place, bucket, interpolation)
    resized = resize(pixels, place.resized, interpolation)
    return resized[place.top : place.top + bucket[1], place.left : place.left + bucket[0]]


def _resize_visible(
    pixels: Pixels, opacity: Pixels | None, place: Placement, bucket: Size, interpolation: str | None
) -> Pixels:
    """Resize and crop an image without letting hidden colours bleed into the edges of its opaque parts."""
    brought: Pixels = resize_and_crop(pixels, place, bucket, interpolation)
    size = (pixels.shape[1], pixels.shape[0])
    too_long = math.prod(place.resized) > MAX_RESIZED_AREA * math.prod(bucket)
    if opacity is None or opacity.all() or size == place.resized or too_long:
        return brought
    shrinks = size[0] >= place.resized[0] and size[1] >= place.resized[1]
    weight = opacity.astype(np.float32)[..., None] / 255
    weighted = np.concatenate([pixels * weight, weight], axis=2)
    weighted = cv2.resize(weighted, place.resized, interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
    weighted = weighted[place.top : place.top + bucket[1], place.left : place.left + bucket[0]]
    shown = weighted[..., 3]
    edge = (shown > 1 / 255) & (shown < 1)
    brought = brought.copy()
    brought[edge] = np.rint(weighted[edge][:, :3] / shown[edge][:, None])
    return brought


def _resize_region(pixels: Any, place: Placement, bucket: Size, interpolation: str | None) -> Any:
    """Resize only the region of an image that ends up in the bucket."""
    height, width = pixels.shape[:2]
    across, down = width / place.resized[0], height / place.resized[1]
    box = (place.left * across, place.top * down, (place.left + bucket[0]) * across, (place.top + bucket[1]) * down)
    name = interpolation or ("area" if across >= 1 and down >= 1 else "lanczos")
    return np.array(Image.fromarray(pixels).resize(bucket, RESIZE_FILTERS[name][1], box=box))
