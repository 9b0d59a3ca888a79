"""The job that edits copies of a folder: its copies, captions and masks, a stop, a full disk and mistakes."""

import errno
import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sd_scripts.data.sources.images import read_image, read_mask
from sd_scripts.runs import process
from sd_scripts.runs.folder import RunFolder, read_json
from sd_scripts.settings.tools.image_tools import OPTIONS
from sd_scripts.tools.images import copies as copies_module
from sd_scripts.tools.images import job as job_module
from tests.support import data
from tests.support.captioning_models.tagging import write_tagger
from tests.support.image_models.tiny import draw, edit, write_foreground, write_texts, write_yunet

pytestmark = pytest.mark.run
HEIC = Path(__file__).with_name("scene.heic")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_yunet(folder / "yunet.onnx")
    write_texts(folder / "text.onnx")
    write_foreground(folder / "u2net.onnx")
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return tmp_path / "photos"


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def stamps(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {name: ((folder / name).read_bytes(), (folder / name).stat().st_mtime_ns) for name in files(folder)}


def size(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def scene() -> Image.Image:
    y, x = np.mgrid[0:120, 0:160]
    return Image.fromarray(np.stack([x * 255 // 160, y * 255 // 120, (x + y) % 256], -1).astype(np.uint8))


def test_odd_formats_become_images_that_training_reads(photos: Path, tmp_path: Path) -> None:
    cats = photos / "10_cat"
    cats.mkdir(parents=True)
    plain, turned = scene(), [scene(), scene().rotate(90), scene().rotate(180)]
    (cats / "phone.heic").write_bytes(HEIC.read_bytes())
    plain.save(cats / "avif.avif", quality=100, subsampling="4:4:4")
    plain.convert("CMYK").save(cats / "cmyk.jpg", quality=100, subsampling=0)
    Image.fromarray(np.full((8, 8), 32896, np.uint16)).save(cats / "deep.png")
    Image.fromarray(np.full((8, 8), 0.5, np.float32)).save(cats / "float.tif")
    for name in ("gif.gif", "animated.webp", "apng.png"):
        turned[0].save(cats / name, save_all=True, append_images=turned[1:], duration=100)
    plain.save(cats / "camera.jpg", format="MPO", save_all=True, append_images=turned[1:])
    plain.save(cats / "scan.tiff")
    plain.save(cats / "plain.png")
    plain.save(cats / "plain.bmp")
    before = stamps(photos)
    assert edit(photos, "--task", "convert", "--run_dir", tmp_path / "run") == 0
    made = tmp_path / "photos-converted" / "10_cat"
    assert stamps(photos) == before
    assert files(made) == {
        *("phone.png", "avif.png", "cmyk.png", "deep.png", "float.png", "gif.png", "animated.png", "apng.png"),
        *("camera.png", "scan.png", "plain.png", "plain_png.png"),
    }
    assert (made / "plain_png.png").read_bytes() == (cats / "plain.png").read_bytes()
    original = np.array(plain, dtype=int)
    apart = {
        name: np.abs(read_image(made / f"{name}.png")[0] - original).mean()
        for name in ("phone", "avif", "cmyk", "gif", "animated", "apng", "camera", "scan", "plain")
    }
    assert {name for name, difference in apart.items() if difference > 8} == set(), apart
    assert [int(read_image(made / f"{name}.png")[0].max()) for name in ("deep", "float")] == [128, 128]
    result = read_json(tmp_path / "run" / "images.json")
    assert (result["made"], result["unchanged"]) == (11, 1)


def test_broken_and_dangerous_files_are_named_and_the_others_converted(photos: Path, tmp_path: Path) -> None:
    draw(photos / "good.png")
    (photos / "cut.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    (photos / "empty.webp").write_bytes(b"")
    (photos / "picture.svg").write_text("<svg onload='alert(1)'/>")
    (photos / "eps.tga").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    (photos / "photo.nef").write_bytes(b"II*\0")
    (photos / "nowhere.png").symlink_to(tmp_path / "gone.png")
    if hasattr(os, "mkfifo"):
        os.mkfifo(photos / "pipe.png")
    head = b"IHDR" + (60_000).to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
    crc = zlib.crc32(head).to_bytes(4, "big")
    (photos / "bomb.png").write_bytes(
        b"\x89PNG\r\n\x1a\n\0\0\0\r" + head + crc + (photos / "good.png").read_bytes()[33:]
    )
    assert edit(photos, "--run_dir", tmp_path / "run") == 0
    assert files(tmp_path / "photos-converted") == {"good.png"}
    failed = {Path(path).name: why for path, why in read_json(tmp_path / "run" / "images.json")["failed"].items()}
    assert failed.keys() == {"cut.jpg", "empty.webp", "picture.svg", "eps.tga", "photo.nef", "bomb.png"}
    assert "can contain programs" in failed["picture.svg"]
    assert "export it as TIFF or JPEG" in failed["photo.nef"]
    (warning,) = [event["text"] for event in RunFolder(tmp_path / "run").events() if event["kind"] == "warning"]
    assert warning.startswith("6 images have no copy: bomb.png, cut.jpg, ")


def test_frames_of_an_animated_image_are_evenly_spaced(photos: Path, tmp_path: Path) -> None:
    photos.mkdir()
    shades = [Image.new("RGB", (16, 16), (20 * number,) * 3) for number in range(6)]
    shades[0].save(photos / "a.webp", save_all=True, append_images=shades[1:], lossless=True)
    (photos / "a.txt").write_text("shades")
    assert edit(photos, "--frames", 3) == 0
    made = tmp_path / "photos-converted"
    assert [read_image(made / f"a_{number}.png")[0][0, 0, 0] for number in (1, 2, 3)] == [0, 40, 80]
    assert [(made / f"a_{number}.txt").read_text() for number in (1, 2, 3)] == ["shades"] * 3


def test_bars_are_removed_and_captions_and_masks_come_along(photos: Path, tmp_path: Path) -> None:
    cats = photos / "10_cat"
    noise = np.random.default_rng(0).integers(60, 200, (100, 150, 3), dtype=np.uint8)
    for name, colour in (("black", 0), ("white", 255)):
        boxed = noise.copy()
        boxed[:20] = boxed[-10:] = colour
        boxed[:, :15] = colour
        cats.mkdir(parents=True, exist_ok=True)
        Image.fromarray(boxed).save(cats / f"{name}.png")
        (cats / f"{name}.txt").write_text(f"{name} bars\n")
    Image.fromarray(noise).save(cats / "whole.jpg")
    mask = np.zeros((50, 75), np.uint8)  # half the size of its image
    mask[10:30] = 255
    (photos / "masks" / "10_cat").mkdir(parents=True)
    Image.fromarray(mask).save(photos / "masks" / "10_cat" / "black.png")
    assert edit(photos, "--task", "bars", "--run_dir", tmp_path / "run") == 0
    made = tmp_path / "photos-trimmed"
    assert files(made) == {
        *("10_cat/black.png", "10_cat/black.txt", "10_cat/white.png", "10_cat/white.txt", "10_cat/whole.jpg"),
        "masks/10_cat/black.png",
    }
    for name in ("black", "white"):
        assert np.array_equal(read_image(made / "10_cat" / f"{name}.png")[0], noise[20:90, 15:])
    assert (made / "10_cat" / "whole.jpg").read_bytes() == (cats / "whole.jpg").read_bytes()
    cut = read_mask(made / "masks" / "10_cat" / "black.png")
    assert cut.shape == (70, 135)
    assert (cut[2:38].min(), cut[42:].max()) == (255, 0)
    assert read_json(tmp_path / "run" / "images.json")["masks"] == str(made / "masks")


def test_images_are_cropped_to_faces(photos: Path, tmp_path: Path, models: Path) -> None:
    draw(photos / "one.png", red=[(84, 68, 115, 99)])
    draw(photos / "two.png", red=[(28, 28, 59, 59), (132, 108, 163, 139)])
    draw(photos / "none.png")
    flags = ("--task", "crop", "--model", models / "yunet.onnx", "--margin", 0.5)
    assert edit(photos, *flags, "--run_dir", tmp_path / "run") == 0
    made = tmp_path / "photos-cropped"
    assert {name: size(made / name) for name in files(made)} == {"one.png": (64, 64), "two.png": (64, 64)}
    shown = read_image(made / "one.png")[0]
    assert (shown[16:48, 16:48, 0].min(), shown[:14, :, 0].max()) == (255, 128)
    (row,) = [row for row in read_json(tmp_path / "run" / "images.json")["images"] if not row["results"]]
    assert (Path(row["image"]).name, row["note"]) == ("none.png", "no face was found")
    edit(photos, *flags, "--faces", "each", "--output_dir", tmp_path / "each")
    assert files(tmp_path / "each") == {"one.png", "two_1.png", "two_2.png"}
    edit(photos, *flags, "--faces", "all", "--square", "--output_dir", tmp_path / "all")
    assert size(tmp_path / "all" / "two.png") == (160, 160)
    edit(photos, *flags, "--min_face", 40, "--output_dir", tmp_path / "large")
    assert not (tmp_path / "large").exists()


def test_images_are_cropped_to_the_area_without_text(photos: Path, tmp_path: Path, models: Path) -> None:
    green = (0, 255, 0)
    draw(photos / "below.png", (192, 160), **{"#00ff00": [(16, 132, 175, 143)]})
    draw(photos / "full.png", (192, 160), background=green)
    draw(photos / "free.png", (192, 160))
    flags = ("--task", "crop", "--crop_to", "text_free", "--model", models / "text.onnx")
    assert edit(photos, *flags, "--run_dir", tmp_path / "run") == 0
    made = tmp_path / "photos-cropped"
    assert files(made) == {"below.png", "free.png"}
    kept = read_image(made / "below.png")[0]
    assert kept.shape[1] == 192
    assert 110 < kept.shape[0] < 132
    assert np.unique(kept).tolist() == [128]
    notes = {Path(row["image"]).name: row["note"] for row in read_json(tmp_path / "run" / "images.json")["images"]}
    assert notes["full.png"] == "only 0 % of it is without text"


def test_tiny_and_elongated_images_end_no_job(photos: Path, tmp_path: Path, models: Path) -> None:
    for name, sides in {"dot": (1, 1), "line": (3000, 1), "column": (1, 900)}.items():
        draw(photos / f"{name}.png", sides)
    tasks = {
        "bars": (),
        "faces": ("--task", "crop", "--model", models / "yunet.onnx"),
        "text": ("--task", "crop", "--crop_to", "text_free", "--model", models / "text.onnx"),
        "large": ("--task", "resize", "--resize_by", "shortest", "--size", 64, "--enlarge"),
        "foreground": ("--task", "mask", "--model", models / "u2net.onnx", "--grow", 0.1, "--feather", 0.1),
    }
    for name, flags in tasks.items():
        assert edit(photos, *flags, "--output_dir", tmp_path / name, "--run_dir", tmp_path / f"run-{name}") == 0
        assert read_json(tmp_path / f"run-{name}" / "images.json")["failed"] == {}, name
    assert size(tmp_path / "large" / "line.png") == (3000, 1)


def test_an_image_without_a_copy_leaves_no_caption(photos: Path, tmp_path: Path) -> None:
    draw(photos / "long.bmp", (16384, 2))
    (photos / "long.txt").write_text("a line")
    draw(photos / "short.bmp")
    assert edit(photos, "--image_format", "webp") == 0
    assert files(tmp_path / "photos-converted") == {"short.webp"}


@pytest.mark.parametrize(
    ("flags", "sizes"),
    [
        (("--size", 100), {"large": (115, 87), "small": (40, 30)}),
        (("--size", 100, "--resize_by", "longest", "--enlarge"), {"large": (100, 75), "small": (100, 75)}),
        (("--size", 90, "--resize_by", "shortest"), {"large": (120, 90), "small": (40, 30)}),
    ],
)
def test_images_are_resized(photos: Path, tmp_path: Path, flags: Any, sizes: dict[str, tuple[int, int]]) -> None:
    draw(photos / "large.png", (160, 120))
    draw(photos / "small.png", (40, 30))
    assert edit(photos, "--task", "resize", *flags) == 0
    assert {name: size(tmp_path / "photos-resized" / f"{name}.png") for name in sizes} == sizes


def test_masks_are_made_as_training_reads_them(photos: Path, tmp_path: Path, models: Path) -> None:
    draw(photos / "10_cat" / "a.png", background="blue", red=[(84, 68, 115, 99)])
    draw(photos / "10_cat" / "b.jpg", background="blue")

    def masks(name: str, *flags: object) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        assert edit(photos, "--task", "mask", "--output_dir", tmp_path / name, *flags) == 0
        assert files(tmp_path / name) == {"10_cat/a.png", "10_cat/b.png"}
        return read_mask(tmp_path / name / "10_cat" / "a.png"), read_mask(tmp_path / name / "10_cat" / "b.png")

    foreground, nothing = masks("background", "--model", models / "u2net.onnx")
    assert (foreground[84, 100], foreground[10, 10]) == (255, 0)
    assert nothing.min() == 255  # all of it is trained: an image without a mask would be refused
    face, _ = masks("faces", "--mask_from", "faces", "--model", models / "yunet.onnx", "--margin", 0)
    assert (face[84, 100], face[69, 85], face[40, 100]) == (255, 0, 0)
    other, _ = masks("inverted", "--mask_from", "faces", "--model", models / "yunet.onnx", "--margin", 0, "--invert")
    assert (other + face == 255).all()
    colour, _ = masks("colour", "--mask_from", "colour", "--colour", "#0000ff", "--floor", 0.2)
    assert (colour[84, 100], colour[10, 10]) == (255, 51)
    plan = data.plan_of(photos, conditioning_data_dir=tmp_path / "background", masked_loss=True, told=[])
    made = tmp_path / "background" / "10_cat"
    assert [item.mask for item in plan.items] == [made / "a.png", made / "b.png"]
    assert edit(photos, "--task", "mask", "--mask_from", "colour") == 0  # where the page looks for them
    assert files(photos) == {"10_cat/a.png", "10_cat/b.jpg", "masks/10_cat/a.png", "masks/10_cat/b.png"}
    assert edit(photos, "--task", "mask", "--mask_from", "colour") == 0
    assert files(tmp_path / "photos-masks") == {"10_cat/a.png", "10_cat/b.png"}
    wide, _ = masks("wide", "--mask_from", "colour", "--colour", "#0000ff", "--grow", 0.05, "--feather", 0.02)
    assert wide[84, 76] > 128 > wide[84, 70] > 0


def test_a_mask_is_the_transparency_of_a_copy_or_made_from_it(photos: Path, tmp_path: Path) -> None:
    draw(photos / "a.png", background="blue", red=[(84, 68, 115, 99)])
    (photos / "a.txt").write_text("a square")
    flags = ("--task", "mask", "--mask_from", "colour", "--colour", "#0000ff", "--save_as", "alpha")
    edit(photos, *flags, "--output_dir", tmp_path / "clear")
    assert files(tmp_path / "clear") == {"a.png", "a.txt"}
    pixels, opacity = read_image(tmp_path / "clear" / "a.png", alpha=True)
    assert opacity is not None
    assert (opacity[84, 100], opacity[0, 0], pixels[0, 0].tolist()) == (255, 0, [0, 0, 255])
    edit(tmp_path / "clear", "--task", "mask", "--mask_from", "alpha", "--output_dir", tmp_path / "masks")
    assert np.array_equal(read_mask(tmp_path / "masks" / "a.png"), opacity)


def test_trying_shows_before_and_after_and_writes_nothing(photos: Path, tmp_path: Path, models: Path) -> None:
    draw(photos / "a.png", red=[(84, 68, 115, 99)])
    draw(photos / "b.png")
    flags = ("--task", "crop", "--model", models / "yunet.onnx", "--try_images", 5)
    assert edit(photos, *flags, "--run_dir", tmp_path / "run") == 0
    assert {path.name for path in tmp_path.iterdir()} == {"photos", "run"}
    assert {file.name for file in (tmp_path / "run").glob("*.jpg")} == {
        *("tried-0-before.jpg", "tried-0-after.jpg", "tried-1-before.jpg")
    }
    assert read_json(tmp_path / "run" / "images.json")["sentence"] == "2 images tried; nothing written"


def stop_after(monkeypatch: pytest.MonkeyPatch, count: int, error: BaseException) -> None:
    written: list[Any] = []
    original = copies_module.Copies.add

    def add(self: Any, row: Any) -> None:
        if len(written) == count:
            raise error
        written.append(row)
        original(self, row)

    monkeypatch.setattr(copies_module.Copies, "add", add)


def test_a_stopped_job_leaves_no_folder_and_continues(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        draw(photos / f"{name}.bmp")
    with monkeypatch.context() as patch:
        stop_after(patch, 2, KeyboardInterrupt())
        assert edit(photos) == 130
    assert not (tmp_path / "photos-converted").exists()
    with (tmp_path / ".photos-converted.unfinished" / "done.jsonl").open("a") as file:
        file.write('{"image": "cut o')  # by a kill
    seen: list[Path] = []
    original = job_module.decoded
    monkeypatch.setattr(job_module, "decoded", lambda path, most: (seen.append(path), original(path, most))[1])
    assert edit(photos, "--run_dir", tmp_path / "run") == 0
    assert sorted(path.name for path in seen) == ["c.bmp", "d.bmp"]
    assert files(tmp_path / "photos-converted") == {"a.png", "b.png", "c.png", "d.png"}
    assert read_json(tmp_path / "run" / "images.json")["sentence"] == "4 images changed; 2 finished before"
    assert {path.name for path in tmp_path.iterdir()} == {"photos", "photos-converted", "run"}


def test_a_different_job_does_not_continue_it(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw(photos / "a.bmp", (64, 64))
    draw(photos / "b.bmp", (64, 64))
    target = ("--output_dir", tmp_path / "made")
    with monkeypatch.context() as patch:
        stop_after(patch, 1, KeyboardInterrupt())
        edit(photos, "--task", "resize", "--size", 32, *target)
    edit(photos, "--task", "resize", "--size", 48, *target)
    assert {size(path) for path in (tmp_path / "made").iterdir()} == {(48, 48)}


def test_a_full_disk_ends_the_job_in_one_sentence_and_keeps_what_is_done(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw(photos / "a.bmp")
    draw(photos / "b.bmp")
    original = os.replace

    def full(source: Any, target: Any) -> None:
        if Path(target).name == "b.png":
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        original(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert edit(photos) == 1
    told = capsys.readouterr().err
    assert "the disk is full" in told
    assert told.count("\n") == 1
    assert not (tmp_path / "photos-converted").exists()
    assert not list(tmp_path.rglob("*.part"))
    assert edit(photos) == 0
    assert files(tmp_path / "photos-converted") == {"a.png", "b.png"}


def test_two_jobs_do_not_write_the_same_folder(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw(photos / "a.bmp")
    unfinished = tmp_path / ".photos-converted.unfinished"
    unfinished.mkdir()
    (unfinished / "job.json").write_text(json.dumps({"key": "", "owner": process.process_key(os.getppid())}))
    assert edit(photos) == 2
    assert capsys.readouterr().err.startswith("output_dir: a different job is writing ")
    (unfinished / "job.json").write_text("{")  # cut off by a kill
    assert edit(photos) == 0


@pytest.mark.skipif(os.name != "posix", reason="Windows has other limits of names")
def test_odd_names_are_kept_and_one_that_is_too_long_is_named(photos: Path, tmp_path: Path) -> None:
    names = ["a'b\"c.bmp", "<img src=x>.bmp", "line\nend.bmp", "猫 é.bmp", "%2e%2e.bmp", os.fsdecode(b"\xff\xfe.bmp")]
    for name in (*names, f"{'x' * 246}.bmp"):
        draw(photos / name, (8, 8))
    assert edit(photos, "--run_dir", tmp_path / "run") == 0
    assert files(tmp_path / "photos-converted") == {f"{name[:-4]}.png" for name in names}
    (problem,) = read_json(tmp_path / "run" / "images.json")["failed"].values()
    assert "is too long for a copy" in problem


def test_mistakes_are_one_sentence_and_exit_code_2(
    photos: Path, tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw(photos / "a.png")
    (tmp_path / "empty").mkdir()
    listed = tmp_path / "list.txt"
    listed.write_text(f"{photos / 'a.png'}\n{photos / 'gone.png'}\n")
    (tmp_path / "text.onnx").write_text("no model")
    tagger = write_tagger(models / "tagger")
    (tmp_path / "model.pth").write_text("no model")
    crop, mask = ("--task", "crop"), ("--task", "mask")
    offered = (
        "model: 'opencv/face_detection_yunet' is not on this machine; it is a download of 0.2 MB under the licence"
    )
    wrong = {
        (): "train_data_dir: not set; choose the folder of the images",
        (tmp_path / "no",): f"train_data_dir: folder not found: '{tmp_path / 'no'}'",
        (tmp_path / "empty",): f"train_data_dir: no image in '{tmp_path / 'empty'}'",
        (photos, "--output_dir", photos): f"output_dir: '{photos}' exists; choose a folder that does not exist yet",
        (photos, "--output_dir", "/proc/x"): "output_dir: '/proc/x' cannot be written",
        (photos, "--image_list", listed): f"image_list: 1 line of '{listed}' are not images: gone.png",
        (photos, *crop): f"{offered} MIT; turn on download to get it",
        (photos, *crop, "--model", tmp_path / "text.onnx"): f"model: '{tmp_path / 'text.onnx'}' is not a YuNet face",
        (photos, *crop, "--model", models / "u2net.onnx"): f"model: '{models / 'u2net.onnx'}' is not a YuNet face",
        (photos, *crop, "--model", listed): f"model: '{listed}' is not an .onnx file",
        (photos, *crop, "--model", models): f"model: '{models}' contains several .onnx files; choose one of them",
        (photos, *crop, "--model", tmp_path / "empty"): f"model: '{tmp_path / 'empty'}' contains no .onnx file",
        (photos, *mask, "--model", tmp_path / "text.onnx"): f"model: '{tmp_path / 'text.onnx'}' cannot be loaded",
        (photos, *mask, "--colour", "green"): "colour: 'green' is not a colour; write it as #rrggbb",
        (photos, "--task", "upscale"): "upscale_model: not set; choose the file of an upscaling model",
        (photos, "--task", "upscale", "--upscale_model", tmp_path / "model.pth"): "upscale_model: '",
        (photos, *mask, "--model", tagger / "model.onnx"): f"model: '{tagger / 'model.onnx'}' does not read images",
        (photos, *mask, "--mask_from", "colour", "--save_as", "alpha", "--image_format", "jpeg"): "image_format: jpeg "
        "has no transparency",
        (photos, "--size", 4): "size: 4 is outside 16..8192",
        (photos, "--caption_extension", "/"): "caption_extension: '/' is not a file extension; use .txt",
    }
    problems = {}
    for flags, sentence in wrong.items():
        code = edit(*flags)
        told = capsys.readouterr().err
        if code != 2 or not told.startswith(sentence) or told.count("\n") != 1:
            problems[flags] = (code, told)
    assert problems == {}
    assert {path.name for path in tmp_path.iterdir()} == {"photos", "empty", "list.txt", "text.onnx", "model.pth"}


def test_every_option_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "image_tools.md").read_text(encoding="utf-8")
    assert [name for name in OPTIONS if f"`{name}`" not in page and f"`--{name}`" not in page] == []
