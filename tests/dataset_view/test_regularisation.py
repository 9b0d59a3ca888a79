"""The regularisation images that a training needs: one for each view of its own, in the sizes of its buckets."""

import random
from pathlib import Path

import pytest
from PIL import Image

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.dataset_view.regularisation import ImageClass, class_of, classes_of, shares, spread
from sd_scripts.formats.images.folder_names import as_folder_name
from tests.support.data import make_folder, plan_of, settings_of

SIZES = {"resolution": "96", "min_bucket_reso": 64, "max_bucket_reso": 192}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_folder(tmp_path / "data" / "3_ohwx cat", [(64, 64), (128, 64), (64, 128)])
    make_folder(tmp_path / "data" / "2_dog", [(64, 64), (128, 32)])
    return tmp_path


def fill(classes: list[ImageClass], folder: Path) -> None:
    for each in classes:
        for number, extent in each.missing(folder):
            path = folder / each.folder_name / f"{number:05d}_1.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", extent.size).save(path)


def test_training_uses_each_of_them_once_and_crops_none(root: Path) -> None:
    classes = classes_of(settings_of(train_data_dir=root / "data", **SIZES))
    assert {each.prompt: each.images for each in classes} == {"cat": 9, "dog": 4}
    fill(classes, root / "reg")
    plan = plan_of(root / "data", reg_data_dir=root / "reg", **SIZES)
    regular = [item for item in plan.items if item.subset.is_reg]
    assert {item.repeats for item in regular} == {1}
    assert len(regular) == sum(item.repeats for item in plan.items if not item.subset.is_reg)
    assert all(item.fit.bucket.size == item.size == item.fit.resized for item in regular)
    assert len({item.size for item in regular}) > 1
    assert {item.caption for item in regular} == {"cat", "dog"}


def test_images_that_are_there_count(root: Path) -> None:
    (dog, cat) = classes_of(settings_of(train_data_dir=root / "data", reg_data_dir=root / "none", **SIZES), images=6)
    assert (cat.images, dog.images) == (4, 2)
    fill([cat], root / "reg")
    (root / "reg" / "1_cat" / "00001_1.png").unlink()
    assert [number for number, _ in cat.missing(root / "reg")] == [1]
    Image.new("RGB", (8, 8)).save(root / "reg" / "1_cat" / "photo of mine.png")
    assert cat.missing(root / "reg") == []


def test_prompts_replace_the_classes_of_the_folders(root: Path) -> None:
    settings = settings_of(train_data_dir=root / "data", **SIZES)
    first, second = classes_of(settings, ["a photo of a cat --n blurry", "a dog?"], images=5)
    assert (first.prompt, first.images, first.folder_name) == ("a photo of a cat", 3, "1_a photo of a cat")
    assert (second.folder_name, second.needs_captions, first.needs_captions) == ("1_a dog", True, False)


def test_a_folder_without_a_class_needs_a_prompt(tmp_path: Path) -> None:
    make_folder(tmp_path / "photos", [(64, 64)])
    flat = settings_of(train_data_dir=tmp_path / "photos", num_repeats=2, **SIZES)
    with pytest.raises(ValueError, match="prompt: not set"):
        classes_of(flat)
    assert [each.images for each in classes_of(flat, ["cat"])] == [2]
    with pytest.raises(ValueError, match="train_data_dir"):
        classes_of(settings_of(train_data_dir=tmp_path / "missing", **SIZES))


def test_shares_are_whole_and_in_proportion() -> None:
    rng = random.Random(0)
    for _ in range(300):
        weights = [rng.randint(1, 50) for _ in range(rng.randint(1, 12))]
        total = rng.randint(1, 500)
        counts = shares(weights, total)
        assert sum(counts) == total
        assert all(abs(n - total * w / sum(weights)) < 1 for n, w in zip(counts, weights, strict=True))
        extents = {Extent(n, 8): weight for n, weight in enumerate(weights, 1)}
        mixed = spread(extents, total)
        assert [mixed.count(extent) for extent in extents] == counts
        half = mixed[: total // 2]
        assert all(abs(half.count(e) - c / 2) <= 1 for e, c in zip(extents, counts, strict=True)), "mixed"


def test_names_of_folders_are_valid_on_every_system() -> None:
    assert [class_of(name) for name in ("cat", "ohwx cat", "sks big dog", "")] == ["cat", "cat", "big dog", ""]
    named = {"a photo of a cat": "a photo of a cat", "../../etc": ".. .. etc", "a: b?\n\x00c. ": "a b c", "..": "class"}
    named |= {"\ud800": "class", "猫" * 100: "猫" * 40, "cafe\u0301": "café"}
    assert {text: as_folder_name(text) for text in named} == named
