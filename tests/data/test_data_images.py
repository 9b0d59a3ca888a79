"""Images on the way into their bucket: filters, crops, colours, faces, masks."""

import tracemalloc
from pathlib import Path
from random import Random

import cv2
import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from sd_scripts.data.batch import Batch, stack_pixels
from sd_scripts.data.plan.buckets import BucketFit, Extent, fit_into
from sd_scripts.data.sources import images
from sd_scripts.data.sources.captions import Caption
from sd_scripts.data.sources.images import (
    RESIZE_FILTERS,
    Augmentation,
    FaceBox,
    UnreadableImage,
    is_too_elongated,
    prepare_image,
    prepare_mask,
    read_image,
    read_size,
    resize,
    vary_colour,
)
from tests.support.data import make_image

NOISE = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
HALF = BucketFit(bucket=Extent(32, 32), resized=(48, 32), ar_error=0.0)


def test_shrinking_averages_areas_and_enlarging_is_lanczos() -> None:
    assert np.array_equal(resize(NOISE, (40, 30), None), cv2.resize(NOISE, (40, 30), interpolation=cv2.INTER_AREA))
    expected = Image.fromarray(NOISE).resize((160, 120), Image.Resampling.LANCZOS)
    assert np.array_equal(resize(NOISE, (160, 120), None), np.array(expected))
    assert resize(NOISE, (80, 60), None) is NOISE


@pytest.mark.parametrize("name", RESIZE_FILTERS)
def test_every_filter_accepts_images_and_masks(name: str) -> None:
    assert resize(NOISE, (40, 30), name).shape == (30, 40, 3)
    assert resize(NOISE[..., 0], (160, 120), name).shape == (120, 160)


def test_an_image_is_cropped_in_the_middle_or_with_random_crop_anywhere(tmp_path: Path) -> None:
    path = make_image(tmp_path / "a.png", (48, 32))
    whole = np.array(Image.open(path))
    middle = prepare_image(path, None, HALF, Augmentation(), Random(0))[0]
    assert np.array_equal(middle, whole[:, 8:40])
    crops = {
        prepare_image(path, None, HALF, Augmentation(random_crop=True), Random(seed))[0].tobytes() for seed in range(60)
    }
    assert len(crops) == 17


@pytest.mark.parametrize("name", [*RESIZE_FILTERS, None])
def test_an_image_too_long_for_memory_is_cropped_before_it_is_resized(tmp_path: Path, name: str | None) -> None:
    strip = np.zeros((1, 20_000, 3), np.uint8)
    strip[:, 9_950:10_050] = 200
    Image.fromarray(strip).save(tmp_path / "a.png")
    fit = fit_into(Extent(256, 256), (20_000, 1))  # 5,120,000 x 256 after resizing
    assert is_too_elongated(fit)
    tracemalloc.start()
    seen = prepare_image(tmp_path / "a.png", None, fit, Augmentation(resize_interpolation=name), Random(0))[0]
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
    assert seen.shape == (256, 256, 3)
    assert (seen == 200).all()


def test_a_part_resized_alone_equals_that_part_of_the_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    y, x = np.mgrid[:40, :400]
    slopes = np.dstack([y * 6, (x - 179) * 6, (221 - x) * 6])  # a shift by a pixel changes 5 and more
    Image.fromarray(slopes.clip(0, 255).astype(np.uint8)).save(tmp_path / "a.png")
    for fit in (fit_into(Extent(32, 32), (400, 40)), fit_into(Extent(96, 96), (400, 40))):
        whole = prepare_image(tmp_path / "a.png", None, fit, Augmentation(), Random(0))[0]
        with monkeypatch.context() as patch:
            patch.setattr(images, "MAX_RESIZED_AREA", 1)
            part = prepare_image(tmp_path / "a.png", None, fit, Augmentation(), Random(0))[0]
        assert part.shape == whole.shape
        assert np.abs(part.astype(int) - whole)[2:-2, 2:-2].max() <= 2


def test_a_mask_is_cropped_with_its_image(tmp_path: Path) -> None:
    path = make_image(tmp_path / "a.png", (48, 32))
    for seed in range(5):
        pixels, mask = prepare_image(path, path, HALF, Augmentation(random_crop=True), Random(seed))
        assert mask is not None
        assert np.array_equal(mask, pixels[..., 0])


def test_the_mask_of_cached_latents_is_cropped_at_the_centre(tmp_path: Path) -> None:
    path = make_image(tmp_path / "a.png", (48, 32), mode="RGBA")
    augmentation = Augmentation(alpha_mask=True)
    _, mask = prepare_image(path, None, HALF, augmentation, Random(0))
    assert mask is not None
    assert np.array_equal(prepare_mask(path, None, HALF, augmentation), mask)  # type: ignore[arg-type]
    assert prepare_mask(path, None, HALF, Augmentation()) is None


def test_opacity_as_a_mask_does_not_change_colours(tmp_path: Path) -> None:
    pixels = np.dstack([NOISE, np.zeros((60, 80), np.uint8)])
    Image.fromarray(pixels).save(tmp_path / "a.png")
    colours, opacity = read_image(tmp_path / "a.png", alpha=True)
    assert np.array_equal(colours, NOISE)
    assert opacity is not None
    assert not opacity.any()


@pytest.mark.parametrize("side", [20, 90])
def test_a_hidden_colour_does_not_bleed_into_the_edges_of_the_alpha_mask(tmp_path: Path, side: int) -> None:
    pixels = np.zeros((50, 50, 4), np.uint8)
    pixels[..., :3] = (0, 0, 250)
    pixels[13:38, 13:38] = (240, 40, 10, 255)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    fit = BucketFit(bucket=Extent(side, side), resized=(side, side), ar_error=0)
    seen, mask = prepare_image(
        tmp_path / "a.png", None, fit, Augmentation(alpha_mask=True, resize_interpolation="area"), Random(0)
    )
    assert mask is not None
    edge = (mask > 1) & (mask < 255)
    assert edge.any()
    assert (seen[mask > 1] == (240, 40, 10)).all()
    assert (seen[0, 0] == (0, 0, 250)).all()  # its surroundings stay as in the file


def test_a_colour_hidden_under_transparency_is_white_without_alpha_mask(tmp_path: Path) -> None:
    opacity = np.full((60, 80), 255, np.uint8)
    opacity[:20], opacity[20:30] = 0, 128
    Image.fromarray(np.dstack([NOISE, opacity])).save(tmp_path / "a.png")
    seen = read_image(tmp_path / "a.png")[0]
    assert (seen[:20] == 255).all()
    assert np.abs(seen[20:30] - (NOISE[20:30] * 128.0 + 255 * 127) / 255).max() <= 1
    assert np.array_equal(seen[30:], NOISE[30:])
    shown, _ = prepare_image(
        tmp_path / "a.png",
        None,
        BucketFit(bucket=Extent(40, 30), resized=(40, 30), ar_error=0),
        Augmentation(),
        Random(),
    )
    assert (shown[:10] == 255).all()
    palette = Image.fromarray(NOISE).convert("P")
    palette.save(tmp_path / "b.png", transparency=bytes(256))
    assert (read_image(tmp_path / "b.png")[0] == 255).all()


def test_16_bit_grey_keeps_its_values(tmp_path: Path) -> None:
    deep = np.array([[0, 2000, 32768, 65535]], np.uint16).repeat(4, axis=0)
    Image.fromarray(deep).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png")[0][0, :, 1].tolist() == [0, 7, 128, 255]
    mask = prepare_mask(
        tmp_path / "a.png",
        tmp_path / "a.png",
        BucketFit(bucket=Extent(4, 4), resized=(4, 4), ar_error=0),
        Augmentation(),
    )
    assert mask is not None
    assert mask[0].tolist() == [0, 7, 128, 255]


def chunk_moved_behind_pixels(png: bytes) -> bytes:
    start = png.index(b"eXIf") - 4
    end = start + 12 + int.from_bytes(png[start : start + 4], "big")
    return png[:start] + png[end:-12] + png[start:end] + png[-12:]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_rotation_noted_in_a_png_is_applied(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(NOISE).save(tmp_path / "a.png", exif=exif)
    (tmp_path / "late.png").write_bytes(chunk_moved_behind_pixels((tmp_path / "a.png").read_bytes()))
    with Image.open(tmp_path / "a.png") as image:
        upright = np.array(ImageOps.exif_transpose(image))
    for name in ("a.png", "late.png"):
        assert read_size(tmp_path / name) == (upright.shape[1], upright.shape[0])
        assert np.array_equal(read_image(tmp_path / name)[0], upright)


def test_grey_and_palette_images_become_colours(tmp_path: Path) -> None:
    for mode in ("L", "P", "1", "LA", "CMYK"):
        path = tmp_path / f"{mode}.{'jpg' if mode == 'CMYK' else 'png'}"
        Image.fromarray(NOISE).convert(mode).save(path)
        assert read_image(path)[0].shape == (60, 80, 3)
        assert read_size(path) == (80, 60)


def test_colour_variation_is_rare_weak_and_repeatable() -> None:
    varied = [vary_colour(NOISE, Random(seed)) for seed in range(200)]
    changed = [each for each in varied if not np.array_equal(each, NOISE)]
    assert 40 < len(changed) < 90
    grey = np.full((4, 4, 3), 128, np.uint8)
    assert all(abs(int(vary_colour(grey, Random(seed))[0, 0, 0]) - 128) < 8 for seed in range(50))
    assert np.array_equal(vary_colour(NOISE, Random(3)), vary_colour(NOISE, Random(3)))


def test_a_face_is_read_from_the_name() -> None:
    assert FaceBox.of(Path("x/a_10_20_30_40.png")) == FaceBox(x=10, y=20, width=30, height=40)
    for name in ("a.png", "10_20_30_40.png", "a_b_20_30_40.png", "a_10_20_0_0.png"):
        assert FaceBox.of(Path(name)) is None


def test_a_face_crop_keeps_the_face_and_its_size_in_the_range(tmp_path: Path) -> None:
    pixels = np.zeros((400, 600, 3), np.uint8)
    pixels[80:120, 480:520] = 255  # a face of 40 pixels around (500, 100)
    path = tmp_path / "a_500_100_40_40.png"
    Image.fromarray(pixels).save(path)
    fit = BucketFit(bucket=Extent(64, 64), resized=(96, 64), ar_error=0.0)
    for jitter in (False, True):
        augmentation = Augmentation(face_crop_aug_range=(2.0, 4.0), random_crop=jitter)
        sides = [
            np.sqrt((prepare_image(path, None, fit, augmentation, Random(seed))[0][..., 0] > 127).sum())
            for seed in range(20)
        ]
        if not jitter:
            assert 64 / 4 - 2 <= min(sides) <= max(sides) <= 64 / 2 + 2
            assert max(sides) - min(sides) > 4


def test_a_face_crop_range_must_be_positive() -> None:
    with pytest.raises(ValueError, match="face_crop_aug_range: 0,1"):
        Augmentation(face_crop_aug_range=(0, 1))


def test_an_unreadable_image_is_named(tmp_path: Path) -> None:
    whole = make_image(tmp_path / "whole.png").read_bytes()
    wrong = (
        ("a.png", b"", "the file is empty"),
        ("b.jpg", b"no", "not an image in a known format"),
        ("c.png", whole[:500], "image file is truncated"),
    )
    for name, content, why in wrong:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UnreadableImage, match=rf"{name} cannot be read: {why}"):
            read_image(tmp_path / name)
    with pytest.raises(UnreadableImage, match=r"none.png cannot be read: No such file or directory$"):
        read_image(tmp_path / "none.png")


def test_a_truncated_image_is_found_by_its_header_and_one_with_trailing_bytes_is_accepted(
    tmp_path: Path,
) -> None:
    for ending in ("png", "jpg", "bmp", "webp"):
        Image.fromarray(NOISE).save(tmp_path / f"whole.{ending}")
        content = (tmp_path / f"whole.{ending}").read_bytes()
        (tmp_path / f"longer.{ending}").write_bytes(content + b"a motion photo has a clip here")
        (tmp_path / f"cut.{ending}").write_bytes(content[: len(content) * 3 // 4])
        assert read_size(tmp_path / f"whole.{ending}") == read_size(tmp_path / f"longer.{ending}") == (80, 60)
        with pytest.raises(UnreadableImage, match=rf"cut.{ending} cannot be read"):
            read_size(tmp_path / f"cut.{ending}")


def test_pixels_span_minus_one_to_one() -> None:
    black, white = np.zeros((8, 16, 3), np.uint8), np.full((8, 16, 3), 255, np.uint8)
    pixels = stack_pixels([black, white])
    assert pixels.shape == (2, 3, 8, 16)
    assert pixels.is_contiguous()
    assert (pixels[0] == -1).all()
    assert (pixels[1] == 1).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="page-locked memory needs a GPU driver")
def test_a_whole_batch_is_in_page_locked_memory() -> None:
    batch = Batch(
        extent=Extent(64, 64),
        bucket=Extent(64, 64),
        captions=[Caption("b")],
        pixels=None,
        latents=torch.zeros(1, 4, 8, 8),
        text={"pool2": torch.zeros(1, 8)},
        conditioning={"sizes": torch.zeros(1, 6, dtype=torch.int64)},
        loss_weight=torch.ones(1),
        mask=None,
    ).pin_memory()
    assert batch.latents is not None
    assert batch.latents.is_pinned()
    assert batch.text["pool2"].is_pinned()
    assert batch.conditioning["sizes"].is_pinned()
    assert batch.captions == [Caption("b")]
