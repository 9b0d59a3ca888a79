"""Images from elsewhere in the folder of the gallery: whatever one is, the others are shown."""

import json
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.access.allowed_paths import EVERYWHERE
from kohya_gui.generate.control_uploads import keep_control, remove_unused
from kohya_gui.generate.generate_routes import as_form, routes
from sd_scripts.formats.images.control_images import why_unreadable
from sd_scripts.formats.images.image_folders import is_readable
from sd_scripts.formats.images.image_parameters import read_chunks
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunStore
from tests.support.data import make_image

POSIX = pytest.mark.skipif(os.name != "posix", reason="pipes, links and names of POSIX")
VALUES = "Steps: 20, Sampler: Euler, CFG scale: 7, Seed: 3, Size: 64x64"
FITS = {"prompt": "a cat", "steps": 20}
OURS = (
    *("{" + '"a":{' * 50_000, "[1, 2]", "null", '"text"', "1" * 5000, '{"prompt": ' + "1" * 5000 + "}"),
    *(
        {**FITS, name: value}
        for name in ("adapters", "control_images")
        for value in (True, "x", {"a": 1}, [[]], [None])
    ),
    *({**FITS, name: value} for name in ("family", "model", "dtype", "sampler") for value in ([], {"a": []}, True)),
    *({**FITS, name: value} for name in ("width", "seed", "height") for value in (float("inf"), float("nan"), 1 << 70)),
    *({**FITS, name: value} for name in ("scale", "guidance") for value in (float("-inf"), "7", [7.0])),
    {**FITS, "adapters": [{"path": ["a"], "strength": float("nan")}, {"name": {}, "strength": "1"}]},
    {**FITS, "model_path": "\udc80", "further": float("nan"), "more": {"deep": []}},
)
WEBUI = (
    *(
        f"a cat\n{VALUES}".replace(old, new)
        for old, new in (("20", "1e999"), ("3", "nan"), ("64x64", f"{'9' * 5000}x1"))
    ),
    *(f"a cat <lora:tom:{strength}>\n{VALUES}" for strength in ("inf", "-nan", "", "1e999", "x")),
    f'a cat\n{VALUES}, Model: "{"[" * 50_000}',
)


def chunks() -> list[dict[str, str]]:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in OURS]
    return [*({"sd_scripts": text} for text in texts), *({"parameters": text} for text in WEBUI)]


def png(path: Path, texts: Mapping[str, str]) -> Path:
    info = PngInfo()
    for key, text in texts.items():
        info.add_itxt(key, text)
    Image.new("RGB", (8, 8)).save(path, pnginfo=info)
    return path


def gallery(folder: Path) -> dict[str, Any]:
    """Return the page's view of a folder, by name, each time it asks."""
    queue = RunQueue(RunStore(folder.parent / "runs.sqlite"))
    browser = TestClient(Starlette(routes=routes(queue, EVERYWHERE)))
    answers = [browser.get(f"/studio/generate/gallery?image_dir={folder}") for _ in range(2)]
    queue.close()
    assert answers[0].content == answers[1].content
    return {image["name"]: image for image in answers[0].json()["images"]}


def test_odd_texts_in_one_image_do_not_remove_others(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for number, texts in enumerate(chunks()):
        png(tmp_path / "images" / f"{number}.png", texts)
    png(tmp_path / "images" / "good.png", {"parameters": f"a dog\n{VALUES}"})
    shown = gallery(tmp_path / "images")
    assert shown.keys() == {"good.png", *(f"{number}.png" for number in range(len(chunks())))}
    assert {image["width"] for image in shown.values()} == {8}
    assert shown["good.png"]["form"]["values"]["prompt"] == "a dog"
    size = {"width": 8, "height": 8, "frames": 1, "fps": 0}
    assert shown["0.png"] == {"name": "0.png", "time": shown["0.png"]["time"], **size}


def test_valid_parameters_are_read_among_odd_ones() -> None:
    for texts in chunks():
        try:
            found = read_chunks(texts)
        except ValueError:  # none of them fits
            continue
        assert "a cat" in found["prompt"] or "[[" in found["prompt"]
        json.dumps([found, as_form(found)], allow_nan=False).encode()
    assert read_chunks({"sd_scripts": json.dumps({**FITS, "width": "wide", "further": [1], "note": "kept"})}) == {
        **FITS,
        "note": "kept",
    }
    assert read_chunks({"parameters": f"a <lora:tom:inf>\n{VALUES}"})["adapters"] == [{"name": "tom", "strength": 1.0}]
    assert as_form({"family": ["sdxl"], "adapters": 7, "control_images": {}})["adapters"] == []


def huge(path: Path) -> Path:
    """A PNG of 50,000 x 50,000 pixels according to its header."""
    header = b"IHDR" + struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk)
    return path


@POSIX
def test_a_file_that_is_not_regular_is_neither_shown_nor_waited_for(tmp_path: Path) -> None:
    images = tmp_path / "images"
    make_image(images / "a.png", (8, 8))
    huge(images / "huge.png")
    (images / "folder.png").mkdir()
    os.mkfifo(images / "pipe.webp")
    (images / "device.jpg").symlink_to("/dev/zero")
    (images / "gone.png").symlink_to(tmp_path / "nothing")
    assert gallery(images).keys() == {"a.png", "huge.png"}
    os.utime(images / "pipe.webp", (0, 0))
    (images / "control_images").mkdir()
    os.mkfifo(images / "control_images" / "old-12345678.png")
    os.utime(images / "control_images" / "old-12345678.png", (0, 0))
    (images / "pipe.png").symlink_to(images / "pipe.webp")
    remove_unused(images)
    assert "file not found" in str(why_unreadable(str(images / "pipe.webp")))


@POSIX
def test_a_name_that_is_not_unicode_does_not_empty_the_gallery(tmp_path: Path) -> None:
    image = make_image(tmp_path / "images" / "a.png", (8, 8))
    (tmp_path / "images" / os.fsdecode(b"b\xff.png")).write_bytes(image.read_bytes())
    assert len(gallery(tmp_path / "images")) == 2


@pytest.mark.parametrize(
    ("name", "format"), [("a.jfif", "JPEG"), ("b.JPE", "JPEG"), ("c.bmp", "BMP"), ("e.png", "PNG")]
)
def test_an_upload_can_be_any_format_that_training_reads(tmp_path: Path, name: str, format: str) -> None:
    texts = PngInfo()
    texts.add_text("workflow", "x" * 2_000_000, zip=True)  # more than Pillow unpacks
    Image.new("RGB", (16, 16)).save(tmp_path / name, format=format, **({"pnginfo": texts} if format == "PNG" else {}))
    kept = keep_control(tmp_path / "kept", name, (tmp_path / name).read_bytes())
    assert kept.suffix == Path(name).suffix.lower()
    assert why_unreadable(str(kept)) is None
    assert is_readable(kept)


@pytest.mark.parametrize("format", ["EPS", "TIFF", "GIF", "PDF", "ICO", "TGA"])
def test_an_upload_is_read_only_by_the_reader_its_name_allows(tmp_path: Path, format: str) -> None:
    Image.new("RGB", (16, 16)).save(tmp_path / "image", format=format)
    with pytest.raises(ValueError, match=r"cat.png cannot be read as an image; choose a PNG, JPEG or WebP file"):
        keep_control(tmp_path / "kept", "cat.png", (tmp_path / "image").read_bytes())
    (tmp_path / "image").rename(tmp_path / "image.png")
    assert "cannot be read as an image" in str(why_unreadable(str(tmp_path / "image.png")))
    assert not (tmp_path / "kept").exists()
