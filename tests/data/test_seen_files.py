"""Facts about files that are remembered between runs: they save reading the files, and are not used for changed
ones."""

import os
import sys
from pathlib import Path

import pytest
from PIL import Image

from sd_scripts.data.plan import dataset
from sd_scripts.data.plan.buckets import Size
from sd_scripts.data.plan.dataset import DataPlan
from sd_scripts.data.sources import reading_progress, seen_files
from sd_scripts.data.sources.captions import Caption
from sd_scripts.data.sources.clips import read_probes
from sd_scripts.data.sources.seen_files import (
    SEEN,
    known_headers,
    remember_cache_keys,
    remember_headers,
    remember_probes,
    stamps_of,
)
from sd_scripts.families.cards.registry import card_of
from sd_scripts.formats.clips.probe import Probe
from sd_scripts.formats.images.image_folders import find_images
from sd_scripts.testing.clips import write_clip
from tests.data.test_data_caches import Encoders
from tests.support.clips import counting_frames
from tests.support.data import make_folder, make_image, plan_of, settings_of


@pytest.fixture(autouse=True)
def _nothing_seen_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The images of a test are a moment old, and yet count as settled."""
    monkeypatch.setenv("LOCALAPPDATA" if sys.platform == "win32" else "XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(seen_files, "SETTLED_NS", 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_folder(tmp_path / "train/1_cat", [(64, 64), (128, 64), (70, 60)])
    return tmp_path / "train"


def sizes_of(plan: DataPlan) -> dict[str, Size]:
    return {item.path.name: item.size for item in plan.items}


def test_sizes_are_remembered_and_an_image_that_has_changed_is_measured_again(root: Path) -> None:
    first = sizes_of(plan_of(root))
    assert first == {"00.png": (64, 64), "01.png": (128, 64), "02.png": (70, 60)}
    paths = find_images(root / "1_cat")
    stamps = stamps_of(paths)
    assert {path.name: size for path, (size, _) in known_headers(stamps).items()} == first
    remember_headers({paths[0]: ((96, 48), False)}, stamps)  # so that it shows that the image is not opened
    assert sizes_of(plan_of(root)) == {**first, "00.png": (96, 48)}
    make_image(paths[0], (32, 96))
    assert sizes_of(plan_of(root)) == {**first, "00.png": (32, 96)}


def test_facts_of_clips_are_remembered_and_changed_clips_are_read_again(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4", counting_frames(5), 16)

    def frames() -> int:
        return read_probes([path], pytest.fail, reading_progress.ReadingProgress())[path].frames

    assert frames() == 5
    stamps = stamps_of([path])
    remember_probes({path: Probe(size=(64, 48), times=range(3))}, stamps)  # shows that the clip is not opened
    assert frames() == 3
    write_clip(path, counting_frames(9), 16)
    assert frames() == 9


def test_animated_images_are_reported_also_when_they_are_remembered(root: Path) -> None:
    folder = root / "1_cat"
    frames = [Image.open(folder / "00.png").copy().rotate(90 * turn) for turn in range(3)]
    frames[0].save(folder / "00.png", save_all=True, append_images=frames[1:])
    frames[0].save(folder / "moves.webp", save_all=True, append_images=frames[1:])
    frames[0].save(folder / "still.webp")
    frames[0].save(folder / "burst.jpg", format="MPO", save_all=True, append_images=frames[1:])
    for more in ({}, {}, {"cache_info": True}, {"cache_info": True}):
        told: list[str] = []
        plan_of(root, told=told, **more)
        assert "2 images are animated, and only their first frame is used: 00.png, moves.webp" in told


def test_an_image_that_replaces_one_of_the_same_length_and_time_is_measured(root: Path) -> None:
    image = root / "1_cat/00.png"
    plan_of(root)
    before = image.stat()
    content = make_image(root / "other.png", (48, 48)).read_bytes()
    image.write_bytes(content + bytes(before.st_size - len(content)))
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (image.stat().st_size, image.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    if sys.platform == "win32":
        pytest.skip("Windows has no change time")
    assert sizes_of(plan_of(root, told=[]))["00.png"] == (48, 48)


def test_an_image_that_was_just_written_is_not_remembered(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_files, "SETTLED_NS", 10**12)
    plan_of(root)
    assert known_headers(stamps_of(find_images(root / "1_cat"))) == {}


def test_stamps_are_the_same_from_a_slow_drive(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [*find_images(root / "1_cat"), root / "none.png"]
    monkeypatch.setattr(seen_files, "AT_ONCE", 1)
    quick = stamps_of(paths)
    monkeypatch.setattr(seen_files, "QUICK", 0)
    assert list(stamps_of(paths).items()) == list(quick.items())
    assert list(quick) == paths[:3]
    assert stamps_of([]) == {}


@pytest.mark.parametrize("damage", [b"", b"no database", b"SQLite format 3\0" + bytes(5000)])
def test_a_damaged_file_is_recreated(root: Path, damage: bytes) -> None:
    first = sizes_of(plan_of(root))
    SEEN.path.write_bytes(damage)
    assert sizes_of(plan_of(root)) == first
    plan_of(root)
    assert len(known_headers(stamps_of(find_images(root / "1_cat")))) == 3


def test_without_a_folder_for_it_nothing_is_remembered(root: Path, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    assert len(plan_of(root).items) == 3
    assert known_headers(stamps_of(find_images(root / "1_cat"))) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no names that are not text")
def test_a_name_that_is_not_text_is_remembered(root: Path) -> None:
    image = root / "1_cat" / os.fsdecode(b"caf\xe9.png")
    (root / "1_cat/00.png").rename(image)
    stamps = stamps_of([image])
    remember_headers({image: ((64, 64), True)}, stamps)
    assert known_headers(stamps) == {image: ((64, 64), True)}


def test_the_oldest_of_too_many_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SEEN, "largest", 2)
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.touch()
        remember_headers({path: ((1, 2), False)}, stamps_of([path]))
    assert known_headers(stamps_of(paths)) == dict.fromkeys(paths[1:], ((1, 2), False))


def test_a_cache_that_was_valid_is_not_read_again_until_it_changes(root: Path) -> None:
    plan, encoders = plan_of(root), Encoders()
    encoders.cache_latents(plan)
    assert encoders.encoded == 3
    disk = encoders.cache_latents(plan)
    files = [disk.file(item) for item in plan.items]
    content = files[0].read_bytes()
    files[0].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    stamps = stamps_of([*files, *(item.path for item in plan.items)])
    key = disk.stamp_key(plan.items[0], stamps)
    assert key is not None
    remember_cache_keys([key])  # so that it shows that the file is not read
    encoders.cache_latents(plan)
    assert (encoders.encoded, encoders.told) == (3, [])
    files[0].touch()
    encoders.cache_latents(plan)
    assert encoders.encoded == 4
    assert "checksum" in encoders.told[0]
    encoders.cache_latents(plan, vae="another")
    assert encoders.encoded == 7
    make_image(plan.items[1].path, (128, 64), seed=9)
    encoders.cache_latents(plan, vae="another")
    assert encoders.encoded == 8


def test_encoded_captions_that_were_valid_are_not_read_again(root: Path) -> None:
    plan, encoders = plan_of(root), Encoders()
    disk = encoders.cache_text(plan)
    made = list(encoders.captions)
    item = plan.items[0]
    source = (item, Caption(item.caption))
    file = disk.file(source)
    file.write_bytes(file.read_bytes()[:-1])
    key = disk.stamp_key(source, stamps_of([file]))
    assert key is not None
    remember_cache_keys([key])
    encoders.cache_text(plan)
    assert encoders.captions == made
    file.touch()
    encoders.cache_text(plan)
    assert encoders.captions == [*made, item.caption]


def test_progress_counts_captions_and_images_of_all_folders(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(root / "1_dog", [(64, 64)] * 2)
    monkeypatch.setattr(reading_progress, "SECONDS", 0)
    told: list[tuple[int, int]] = []
    dataset.plan_data(
        settings_of(train_data_dir=root),
        card_of("sdxl"),
        seed=1,
        warn=pytest.fail,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told[0] == (1, 6)
    assert told[-1] == (10, 10)
