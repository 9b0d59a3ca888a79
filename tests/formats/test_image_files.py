"""Images are trained as they are displayed: with their colour profiles, whatever else is in their files."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from sd_scripts.data.caches.cache_files import content_digest
from sd_scripts.data.sources import images
from sd_scripts.data.sources.images import UnreadableImage, is_converted, read_image, read_mask, read_size
from sd_scripts.formats.images.control_images import why_unreadable
from sd_scripts.formats.images.image_files import LARGEST_PROFILE
from tests.data.test_data_caches import Encoders
from tests.support.data import make_folder, plan_of
from tests.support.icc import ROMM, SRGB, encoded, in_srgb, profile

COLOURS = (
    np.array([[(200, 90, 60), (70, 160, 90), (60, 80, 190), (128, 128, 128)]], np.uint8).repeat(16, 1).repeat(64, 0)
)


def shown(path: Path) -> np.ndarray:
    return read_image(path)[0].astype(float)


@pytest.mark.parametrize(("name", "bound"), [("a.jpg", 6), ("a.webp", 1.5), ("a.png", 1.5)])
def test_colours_are_converted_by_the_profile_in_the_file(tmp_path: Path, name: str, bound: float) -> None:
    options = {"quality": 100, "subsampling": 0} if name.endswith("jpg") else {"lossless": True}
    Image.fromarray(COLOURS).save(tmp_path / name, icc_profile=profile(1.8, ROMM), **options)
    assert np.abs(shown(tmp_path / name) - in_srgb(COLOURS, 1.8, ROMM)).max() <= bound


def test_palettes_transparency_and_rotation_are_kept_by_the_conversion(tmp_path: Path) -> None:
    expected, exif = in_srgb(COLOURS, 1.8, ROMM), Image.Exif()
    exif[0x0112] = 6
    opacity = np.full(COLOURS.shape[:2], 255, np.uint8)
    opacity[:32] = 0
    palette = Image.fromarray(COLOURS).quantize(8)
    palette.save(tmp_path / "palette.png", icc_profile=profile(1.8, ROMM), exif=exif)
    Image.fromarray(np.dstack([COLOURS, opacity])).save(tmp_path / "clear.png", icc_profile=profile(1.8, ROMM))
    assert np.abs(shown(tmp_path / "palette.png") - np.rot90(expected, -1)).max() <= 1.5
    assert (shown(tmp_path / "clear.png")[:32] == 255).all()
    colours, alpha = read_image(tmp_path / "clear.png", alpha=True)
    assert np.abs(colours - expected).max() <= 1.5
    assert np.array_equal(alpha, opacity)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["L", "LA", "I;16"])
def test_grey_images_have_grey_profiles(tmp_path: Path, mode: str) -> None:
    ramp = np.arange(256, dtype=np.uint8)[None].repeat(4, axis=0)
    image = Image.fromarray(ramp.astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(ramp).convert(mode)
    image.save(tmp_path / "a.png", icc_profile=profile(1.0))
    assert np.abs(shown(tmp_path / "a.png")[..., 1] - encoded(ramp / 255)).max() <= 1.5
    assert np.array_equal(read_mask(tmp_path / "a.png"), ramp)  # a mask is not an image: its numbers are weights


def test_profiles_without_effect_leave_every_number_unchanged(tmp_path: Path) -> None:
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for number, content in enumerate((srgb, profile(1.0), profile(1.8, ROMM)[:200], b"none", srgb[:-500])):
        path = tmp_path / f"{number}.png"
        Image.fromarray(COLOURS).save(path, icc_profile=content)
        assert np.array_equal(read_image(path)[0], COLOURS), number
        assert not is_converted(path)
    Image.fromarray(COLOURS).convert("CMYK").save(tmp_path / "a.jpg", quality=100, icc_profile=srgb)
    assert np.abs(shown(tmp_path / "a.jpg") - COLOURS).max() <= 6


def test_latents_made_without_the_profile_are_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first, *_) = make_folder(tmp_path / "1_x", [(64, 64)] * 3)
    Image.fromarray(COLOURS).save(first, icc_profile=profile(2.6, SRGB))
    encoders = Encoders()
    with monkeypatch.context() as patch:
        patch.setattr("sd_scripts.data.caches.latent_store.pixels_digest", content_digest)
        encoders.cache_latents(plan_of(tmp_path))
        encoders.cache_latents(plan_of(tmp_path))
    assert encoders.encoded == 3
    encoders.cache_latents(plan_of(tmp_path))
    encoders.cache_latents(plan_of(tmp_path))
    assert encoders.encoded == 4


def test_caches_that_were_valid_for_an_earlier_decoder_are_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(tmp_path / "1_x", [(64, 64)])
    (item,) = plan_of(tmp_path).items
    disk = Encoders().cache_latents(plan_of(tmp_path))
    stamps = dict.fromkeys((item.path, disk.file(item)), (1, 2, 3))
    before = disk.stamp_key(item, stamps)
    monkeypatch.setattr("sd_scripts.data.caches.cache_filling.DECODER", images.DECODER + 1)
    assert None is not before != disk.stamp_key(item, stamps)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def with_chunks(path: Path, *chunks: bytes, mode: str = "RGB") -> Path:
    """A PNG of the colours with these chunks right behind its header."""
    Image.fromarray(COLOURS).convert(mode).save(path)
    content = path.read_bytes()
    path.write_bytes(content[:33] + b"".join(chunks) + content[33:])
    return path


def states(gamma: float, *points: float) -> list[bytes]:
    """Chunks gAMA and, with x and y of white, red, green and blue, cHRM."""
    numbers = [struct.pack(">I", round(number * 100_000)) for number in (gamma, *points)]
    return [chunk(b"gAMA", numbers[0]), *[chunk(b"cHRM", b"".join(numbers[1:]))] * bool(points)]


WHITE = (0.3127, 0.329)
SRGB_POINTS = (*WHITE, 0.64, 0.33, 0.3, 0.6, 0.15, 0.06)
ADOBE_POINTS = (*WHITE, 0.64, 0.33, 0.21, 0.71, 0.15, 0.06)
ADOBE = ((0.6097, 0.3111, 0.0195), (0.2053, 0.6257, 0.0609), (0.1492, 0.0632, 0.7446))
BT2020 = ((0.6735, 0.279, -0.0019), (0.1657, 0.6753, 0.03), (0.1251, 0.0456, 0.7968))


@pytest.mark.parametrize(
    ("chunks", "gamma", "primaries"),
    [
        (states(1 / 1.8), 1.8, SRGB),
        (states(1 / 1.6, *ADOBE_POINTS), 1.6, ADOBE),
        ([chunk(b"cICP", bytes((9, 4, 0, 1))), chunk(b"gAMA", struct.pack(">I", 100_000))], 2.2, BT2020),
        ([chunk(b"iCCP", b"x\0\0" + zlib.compress(profile(1.8, ROMM))), *states(1.0)], 1.8, ROMM),
        ([chunk(b"iCCP", b"x\0\0" + zlib.compress(profile(1.8, ROMM))), chunk(b"cICP", b"\1\10\0\1")], 1.0, SRGB),
    ],
)
def test_a_png_is_displayed_by_its_most_important_chunk(
    chunks: list[bytes], gamma: float, primaries: Any, tmp_path: Path
) -> None:
    path = with_chunks(tmp_path / "a.png", *chunks)
    assert np.abs(shown(path) - in_srgb(COLOURS, gamma, primaries)).max() <= 2
    assert is_converted(path)


def test_a_grey_png_has_a_gamma_too(tmp_path: Path) -> None:
    grey = np.asarray(Image.fromarray(COLOURS).convert("L"))
    path = with_chunks(tmp_path / "a.png", *states(1.0, *SRGB_POINTS), mode="L")
    assert np.abs(shown(path)[..., 0] - encoded(grey / 255)).max() <= 1.5


@pytest.mark.parametrize(
    "chunks",
    [
        states(0.45455, *SRGB_POINTS),
        states(0.47),
        [chunk(b"sRGB", b"\0"), *states(1.0, *ADOBE_POINTS)],
        [chunk(b"cICP", bytes((1, 13, 0, 1)))],
        [chunk(b"cICP", bytes((9, 16, 0, 1)))],
        [chunk(b"cICP", b"")],
        states(0.0),
        states(0.5, *[0.0] * 8)[1:],
        states(0.45, *[0.3] * 8),
        states(0.45, *[20_000.0, 0.00001] * 4),
    ],
)
def test_a_png_of_srgb_or_of_impossible_colours_keeps_its_numbers(chunks: list[bytes], tmp_path: Path) -> None:
    path = with_chunks(tmp_path / "a.png", *chunks)
    assert np.array_equal(read_image(path)[0], COLOURS)
    assert not is_converted(path)


LONG = {
    "zTXt": chunk(b"zTXt", b"workflow\0\0" + zlib.compress(bytes(3_000_000))),
    "iTXt": chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(b"x" * 3_000_000)),
    "many tEXt": chunk(b"tEXt", b"mask\0" + b"x" * 1_100_000) * 62,
    "iCCP": chunk(b"iCCP", b"scanner\0\0" + zlib.compress(profile(1.8, ROMM, padding=3_000_000))),
    "bomb": chunk(b"iCCP", b"scanner\0\0" + zlib.compress(bytes(LARGEST_PROFILE + 1))),
}


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("place", ["before", "behind"])
def test_long_texts_and_profiles_in_a_png_do_not_matter(tmp_path: Path, kind: str, place: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    path = tmp_path / "a.png"
    Image.fromarray(COLOURS[:48]).save(path, exif=exif)
    png = path.read_bytes()
    at = 33 if place == "before" else len(png) - 12
    path.write_bytes(png[:at] + LONG[kind] + png[at:])
    expected = in_srgb(COLOURS[:48], 1.8, ROMM) if kind == "iCCP" and place == "before" else COLOURS[:48]
    assert read_size(path) == (48, 64)
    assert np.abs(shown(path) - np.rot90(expected)).max() <= 1.5
    assert why_unreadable(str(path)) is None


def test_a_png_that_is_broken_as_well_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(COLOURS).save(path)
    png = path.read_bytes()
    path.write_bytes(png[:33] + LONG["zTXt"] + png[33:80])
    with pytest.raises(UnreadableImage, match=r"a\.png cannot be read"):
        read_image(path)
