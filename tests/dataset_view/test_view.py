"""The page shows the images of a dataset as training reads them."""

import os
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sd_scripts.data.plan.dataset import DataPlan
from sd_scripts.data.plan.epochs import plan_epoch
from sd_scripts.data.reader import BatchReader
from sd_scripts.data.sources.images import read_image, resize
from sd_scripts.dataset_view.crops import fits_of
from sd_scripts.dataset_view.step_view import pixels_of
from sd_scripts.dataset_view.view import View, plan_view, shown_images, view_of
from sd_scripts.settings.settings import Settings
from tests.support import data
from tests.support.data import make_folder, make_image, plan_data

pytestmark = pytest.mark.fast
DATASETS = 60


def settings_of(**values: Any) -> Settings:
    return data.settings_of(**{"resolution": "96", "min_bucket_reso": 64, "max_bucket_reso": 256} | values)


def random_dataset(root: Path, random: Random) -> Settings:
    """Make a small dataset, and return settings that suit it."""
    for folder in range(random.randint(1, 2)):
        inner = root / f"{random.randint(1, 3)}_cat {folder}"
        for number in range(random.randint(1, 3)):
            size = random.randint(20, 140), random.randint(20, 140)
            image = make_image(inner / f"{number}.{random.choice(['png', 'bmp', 'webp'])}", size, random.randint(0, 99))
            if random.random() < 0.7:
                text = random.choice(["", "a, b", "  cat ", "two\nlines", "ünï 猫"])
                image.with_suffix(".txt").write_text(text, encoding="utf-8")
    enable_bucket = random.random() < 0.8
    no_upscale = enable_bucket and random.random() < 0.4
    return settings_of(
        train_data_dir=root,
        resolution=random.choice(["64", "96", "96,64", "64,128"]),
        enable_bucket=enable_bucket,
        bucket_no_upscale=no_upscale,
        equal_token_buckets=enable_bucket and not no_upscale and random.random() < 0.3,
        bucket_reso_steps=random.choice([16, 32]),
        max_bucket_reso=random.choice([128, 256]),
        train_batch_size=random.randint(1, 3),
        caption_prefix=random.choice([None, "sks"]),
    )


def differences(settings: Settings, plan: DataPlan) -> list[str]:
    """Return where batches of the trainer differ from what the page shows of their images."""
    images, _ = shown_images(plan_view(settings))
    shown = {image.path: image for image in images}
    prefix = f"{settings.values()['caption_prefix']} " if settings.values()["caption_prefix"] else ""
    seen: dict[str, int] = dict.fromkeys(shown, 0)
    found = []
    reader = BatchReader(plan)
    for planned in plan_epoch(plan, 1):  # type: ignore[attr-defined]
        batch, _ = reader[planned]
        assert batch is not None
        assert batch.pixels is not None
        for row, (index, _) in enumerate(planned.picks):
            image = shown[str(plan.items[index].path)]
            seen[image.path] += 1
            assert image.resized
            assert image.crop
            width, height = image.resized
            left, top = round(image.crop[0] * width), round(image.crop[1] * height)
            wide, high = round(image.crop[2] * width), round(image.crop[3] * height)
            cut = resize(read_image(Path(image.path))[0], image.resized, None)[top : top + high, left : left + wide]
            if not np.array_equal(cut, pixels_of(batch.pixels[row])):
                found.append(f"{image}: other pixels")
            if image.bucket != f"{wide}x{high}" or batch.extent.size != (wide, high):
                found.append(f"{image}: bucket {batch.extent}")
            if batch.captions[row].text != f"{prefix}{image.caption}".strip(" " if not image.caption else ""):
                found.append(f"{image}: caption {batch.captions[row].text!r}")
    found += [f"{path}: {shown[path].repeats} repeats" for path, count in seen.items() if shown[path].repeats != count]
    return found


def test_crops_buckets_repeats_and_captions_match_training(tmp_path: Path) -> None:
    random = Random(43)
    found = []
    for number in range(DATASETS):
        settings = random_dataset(tmp_path / str(number), random)
        try:
            plan = plan_data(settings, seed=7, warn=lambda _: None)
        except ValueError:  # all images are too small
            assert plan_view(settings).refused
            continue
        found += differences(settings, plan)
    assert found == []


def images_of(settings: Settings) -> dict[str, dict[str, Any]]:
    return {Path(image["path"]).name: image for image in view_of(settings)["images"]}


def test_images_that_training_leaves_out_are_shown_with_the_reason(tmp_path: Path) -> None:
    folder = tmp_path / "2_cat"
    make_folder(folder, [(64, 64), (64, 64)])
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nno")
    (folder / "empty.jpg").touch()
    (folder / "drawing.svg").write_text("<svg onload='alert(1)'/>")
    (folder / "photo.heic").touch()
    make_image(folder / "narrow.png", (80, 8))
    (folder / "00.png").with_suffix(".txt").unlink()
    images = images_of(settings_of(train_data_dir=tmp_path, bucket_no_upscale=True))
    assert {name: image["why"] for name, image in images.items() if image["role"] == "left out"} == {
        "broken.png": "cannot be read: not an image in a known format",
        "drawing.svg": "training does not read this kind of image; convert it to PNG, JPEG or WebP",
        "empty.jpg": "cannot be read: the file is empty",
        "narrow.png": "the plan of the run leaves it out; see the notes",
        "photo.heic": "training does not read this kind of image; convert it to PNG, JPEG or WebP",
    }
    assert (images["00.png"]["captioned"], images["00.png"]["caption"]) == (False, "cat")
    assert (images["01.png"]["captioned"], images["01.png"]["repeats"]) == (True, 2)


def test_a_folder_that_training_refuses_is_shown_with_the_reason(tmp_path: Path) -> None:
    make_folder(tmp_path / "photos", [(64, 64), (96, 48)])
    view = view_of(settings_of(train_data_dir=tmp_path / "photos"))
    assert view["refused"] == [
        f"train_data_dir: no folder named like 10_cat in '{tmp_path / 'photos'}'; "
        "set num_repeats = 1 to train the 2 images in it unchanged"
    ]
    assert [image["bucket"] for image in view["images"]] == ["96x96", "128x64"]


def test_without_a_plan_images_still_have_buckets(tmp_path: Path) -> None:
    make_folder(tmp_path / "1_cat", [(64, 64)])
    (tmp_path / "1_cat" / "00.txt").write_bytes(b"\xff\xfe\x00")
    view = view_of(settings_of(train_data_dir=tmp_path))
    (image,) = view["images"]
    assert "is not UTF-8 text" in image["why"]
    assert (image["role"], image["bucket"], view["sum"]) == ("left out", "96x96", None)


def test_validation_and_regularisation_images_are_told_apart(tmp_path: Path) -> None:
    make_folder(tmp_path / "train" / "1_cat", [(64, 64)] * 4)
    make_folder(tmp_path / "reg" / "1_cat", [(64, 64)] * 2)
    view = view_of(
        settings_of(train_data_dir=tmp_path / "train", reg_data_dir=tmp_path / "reg", validation_split=0.25, seed=1)
    )
    roles = [image["role"] for image in view["images"]]
    assert sorted(roles) == ["regularisation"] * 2 + ["trained"] * 3 + ["validation"]


def test_cached_latents_are_noticed(tmp_path: Path) -> None:
    make_folder(tmp_path / "1_cat", [(64, 64), (64, 64)])
    (tmp_path / "1_cat" / "00_0064x0064_sdxl.safetensors").touch()
    (tmp_path / "1_cat" / "01_0032x0064_sdxl.npz").touch()  # of another size
    images = images_of(settings_of(train_data_dir=tmp_path))
    assert {name: image["cached"] for name, image in images.items()} == {"00.png": True, "01.png": False}


def test_the_sum_of_an_epoch_leads_to_the_steps(tmp_path: Path) -> None:
    make_folder(tmp_path / "10_cat", [(64, 64)] * 5)
    make_folder(tmp_path / "2_dog", [(128, 64)] * 3)
    view = view_of(
        settings_of(
            train_data_dir=tmp_path,
            train_batch_size=4,
            max_train_epochs=10,
            gradient_accumulation_steps=2,
            num_processes=2,
        )
    )
    assert view["sum"] == {
        "concepts": [
            {"name": "10_cat", "images": 5, "repeats": 10, "is_reg": False},
            {"name": "2_dog", "images": 3, "repeats": 2, "is_reg": False},
        ],
        "images": 8,
        "per_epoch": 56,
        "batch_sizes": [4],
        "batches": 8,  # 13 of cats and 2 of dogs, on two GPUs
        "processes": 2,
        "accumulation": 2,
        "steps_per_epoch": 4,
        "epochs": 10,
        "steps": 40,
    }
    rows = {row["bucket"]: (row["images"], row["per_epoch"], row["full"], row["rest"]) for row in view["buckets"]}
    assert rows == {"96x96": (5, 50, 12, 2), "128x64": (3, 6, 1, 2)}


def test_looking_writes_nothing_into_the_folder(tmp_path: Path) -> None:
    make_folder(tmp_path / "1_cat", [(64, 64)])
    before = sorted(tmp_path.rglob("*"))
    view_of(settings_of(train_data_dir=tmp_path, cache_info=True))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root reads everything")
def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path / "1_cat", [(64, 64)])
    (tmp_path / "1_cat").chmod(0)
    view = view_of(settings_of(train_data_dir=tmp_path))
    (tmp_path / "1_cat").chmod(0o700)
    assert (view["images"], view["refused"] != []) == ([], True)


def test_pixels_of_a_batch_lose_nothing() -> None:
    levels = torch.arange(256, dtype=torch.float32).repeat(3, 1, 1).div(127.5).sub(1)
    assert pixels_of(levels)[0, :, 0].tolist() == list(range(256))


def test_masks_are_shown_with_their_faults(tmp_path: Path) -> None:
    make_folder(tmp_path / "1_cat", [(64, 48)] * 5)
    masks = tmp_path / "masks" / "1_cat"
    make_image(masks / "00.png", (32, 24))  # of the image's shape
    make_image(masks / "01.png", (48, 48))
    Image.new("L", (64, 48)).save(masks / "02.png")
    (masks / "03.png").write_bytes(b"no image")
    shown = {Path(image["path"]).stem: image for image in view_of(settings_of(train_data_dir=tmp_path))["images"]}
    assert [shown[f"0{n}"]["mask_problem"] for n in range(5)] == ["", "differs", "black", "broken", ""]
    assert [bool(shown[f"0{n}"]["mask_key"]) for n in range(5)] == [True, True, True, True, False]
    assert not any(image["mask"] for image in shown.values())  # training does not use them yet
    used = settings_of(train_data_dir=tmp_path, masked_loss=True, conditioning_data_dir=tmp_path / "masks")
    view = view_of(used)
    assert "has no mask for 04.png" in view["refused"][0]
    assert shown["00"]["mask_key"] == next(image for image in view["images"] if "00" in image["path"])["mask_key"]


def test_with_bucket_no_upscale_a_small_cut_of_a_buckets_shape_has_a_smaller_bucket(tmp_path: Path) -> None:
    make_folder(tmp_path / "1_cat", [(64, 64)])
    upscaled, kept = (
        fits_of(View(settings=settings_of(train_data_dir=tmp_path, bucket_no_upscale=value)).rules()[0], [(64, 64)])[0]
        for value in (False, True)
    )
    assert upscaled["bucket"] > kept["bucket"] == kept["resized"] == (64, 64)


def test_a_cut_is_shown_with_the_bucket_that_training_gives_it(tmp_path: Path) -> None:
    sizes = [(64, 64), (100, 40), (33, 97), (640, 480), (20, 20)]
    make_folder(tmp_path / "1_cat", sizes)
    settings = settings_of(train_data_dir=tmp_path)
    view = view_of(settings)
    shown = sorted(view["images"], key=lambda image: str(image["path"]))
    fits = fits_of(View(settings=settings).rules()[0], sizes)
    assert [fit and "x".join(map(str, fit["bucket"])) for fit in fits] == [image["bucket"] for image in shown]
    assert [fit and fit["resized"] for fit in fits] == [image["resized"] for image in shown]
    assert all(image["bucket"] in {"x".join(map(str, frame)) for frame in view["frames"][0]} for image in shown)
