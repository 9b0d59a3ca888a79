"""Thumbnails show images as training decodes them, and measurements find what they are for."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from sd_scripts.data.sources.images import Pixels, UnreadableImage, read_image
from sd_scripts.dataset_view.looking import THUMBNAIL_SIDE, alike, look_at, preview

pytestmark = pytest.mark.fast


def scene(seed: int = 0, size: tuple[int, int] = (300, 200)) -> Pixels:
    """Coarse colours with fine noise, as photos have."""
    coarse = np.random.default_rng(seed).integers(40, 255, (6, 8, 3), dtype=np.uint8)
    pixels = cv2.resize(coarse, size, interpolation=cv2.INTER_CUBIC).astype(np.int16)
    noise = np.random.default_rng(seed + 1).integers(-25, 25, pixels.shape)
    return np.clip(pixels + noise, 0, 255).astype(np.uint8)


def decoded(jpeg: bytes) -> Pixels:
    return np.asarray(cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR))[..., ::-1]


def test_a_thumbnail_is_upright_as_in_training(tmp_path: Path) -> None:
    image = Image.fromarray(scene(size=(1100, 700)))
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        image.save(tmp_path / "a.jpg", exif=exif)
        trained = read_image(tmp_path / "a.jpg")[0]
        small = decoded(look_at(tmp_path / "a.jpg")[0])
        assert max(small.shape) == THUMBNAIL_SIDE
        expected = cv2.resize(trained, small.shape[1::-1], interpolation=cv2.INTER_AREA)
        assert np.abs(small.astype(int) - expected).mean() < 6, orientation


def test_a_broken_exif_block_does_not_hide_an_image(tmp_path: Path) -> None:
    Image.fromarray(scene()).save(tmp_path / "a.jpg", exif=b"Exif\0\0garbage")
    assert decoded(look_at(tmp_path / "a.jpg")[0]).shape == (200, 300, 3)


def test_thumbnails_and_previews_carry_nothing_of_the_file_but_pixels(tmp_path: Path) -> None:
    script = "<script>alert(1)</script>"
    exif = Image.Exif()
    exif[0x010E] = script
    Image.fromarray(scene()).save(tmp_path / "a.jpg", exif=exif, comment=script.encode())
    for made in (look_at(tmp_path / "a.jpg")[0], preview(tmp_path / "a.jpg")):
        assert made.startswith(b"\xff\xd8\xff")
        assert b"script" not in made


@pytest.mark.parametrize("content", [b"", b"\xff\xd8\xff", b"<svg onload='alert(1)'/>", b"\x89PNG\r\n\x1a\n"])
def test_a_broken_image_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(UnreadableImage, match=r"a\.jpg cannot be read"):
        look_at(tmp_path / "a.jpg")


def test_a_cut_off_jpeg_is_broken(tmp_path: Path) -> None:
    Image.fromarray(scene()).save(tmp_path / "whole.jpg")
    (tmp_path / "a.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:-4000])
    with pytest.raises(UnreadableImage):
        look_at(tmp_path / "a.jpg")


def test_a_blurred_image_is_less_sharp_at_any_size(tmp_path: Path) -> None:
    sharp = scene(size=(1024, 768))
    blurred = cv2.GaussianBlur(sharp, (0, 0), 8)
    values = {}
    for name, pixels in {"sharp": sharp, "blurred": blurred, "small": cv2.resize(blurred, (512, 384))}.items():
        Image.fromarray(np.asarray(pixels)).save(tmp_path / f"{name}.png")
        values[name] = look_at(tmp_path / f"{name}.png")[1].sharpness
    assert values["blurred"] < 20 < 60 < values["sharp"]
    assert values["small"] < 20


def test_black_bars_are_measured_and_dark_images_have_none(tmp_path: Path) -> None:
    boxed = scene()
    boxed[:30] = boxed[-20:] = 3
    fading = (scene() * np.linspace(0, 1, 200)[:, None, None]).astype(np.uint8)
    bars = {}
    for name, pixels in {"boxed": boxed, "fading": fading, "black": np.zeros_like(boxed), "whole": scene()}.items():
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
        bars[name] = look_at(tmp_path / f"{name}.png")[1].bars
    assert bars.pop("boxed") == (0, 0.15, 0, 0.1)
    assert set(bars.values()) == {(0, 0, 0, 0)}


def test_near_duplicates_are_grouped_and_others_are_not(tmp_path: Path) -> None:
    Image.fromarray(scene(1)).save(tmp_path / "0.png")
    Image.fromarray(scene(1)).resize((150, 100)).save(tmp_path / "1.jpg", quality=60)
    Image.fromarray(np.clip(scene(1) * 0.9 + 12, 0, 255).astype(np.uint8)).save(tmp_path / "2.webp")
    for number in range(3, 40):
        Image.fromarray(scene(number)).save(tmp_path / f"{number}.png")
    names = sorted(tmp_path.iterdir(), key=lambda path: int(path.stem))
    measures = [look_at(path)[1] for path in names]
    assert alike([each.likeness for each in measures], 10) == [[0, 1, 2]]
    assert len({each.digest for each in measures}) == len(measures)


def test_images_of_different_things_on_a_plain_background_are_not_alike(tmp_path: Path) -> None:
    def drawn(name: str, colour: tuple[int, int, int], centre: tuple[int, int], side: int = 300) -> str:
        pixels = np.full((300, 300, 3), 240, dtype=np.uint8)
        cv2.circle(pixels, centre, 50, colour, -1)
        Image.fromarray(pixels).resize((side, side)).save(tmp_path / name)
        return look_at(tmp_path / name)[1].likeness

    red, place = (214, 66, 56), (120, 160)
    seen = [drawn("a.png", red, place), drawn("b.png", (63, 108, 214), place), drawn("c.jpg", red, place, 180)]
    assert alike([*seen, drawn("d.png", red, (190, 110))], 10) == [[0, 2]]


def test_a_group_has_no_image_that_only_resembles_one_that_resembles_the_others() -> None:
    chain = [f"{(1 << bits) - 1:032x}" + "00" * 48 for bits in (0, 8, 16, 24, 32)]
    assert alike(chain, 10) == [[0, 1, 2], [3, 4]]


def test_no_and_one_image_are_alone() -> None:
    assert (alike([], 10), alike(["00" * 16], 10)) == ([], [])
