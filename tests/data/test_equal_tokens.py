"""Buckets with equal tokens: their sizes, which image goes where, and incompatible options."""

import json
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.data.plan.buckets import BucketFit, BucketRules, Buckets, bucket_resolutions, equal_tokens_need
from sd_scripts.data.plan.dataset import plan_data
from sd_scripts.families.cards.registry import card_of, cards
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values
from tests.support.data import make_folder, plan_of, settings_of


def rules(resolution: tuple[int, int] = (1024, 1024), multiple: int = 32, **more: Any) -> BucketRules:
    values = {"enable_bucket": True, "max_bucket_reso": 2048, "equal_token_buckets": True, **more}
    return BucketRules(resolution=resolution, **values).rounded(32, multiple)


@pytest.mark.parametrize("card", cards(), ids=lambda card: card.name)
@pytest.mark.parametrize("resolution", [(1024, 1024), (768, 768), (512, 512), (1152, 896), (1500, 500)], ids=str)
def test_all_buckets_of_a_family_have_the_same_number_of_tokens(card: Any, resolution: tuple[int, int]) -> None:
    sizes = bucket_resolutions(rules(resolution, card.token_multiple))
    assert len(sizes) >= (4 if card.token_multiple <= 32 else 3)  # a coarse grid has few sizes of one area
    assert {(height, width) for width, height in sizes} == set(sizes)
    assert len({card.plan.tokens(width, height, 1) for width, height in sizes}) == 1
    (area,) = {width * height for width, height in sizes}
    assert 0.75 * resolution[0] * resolution[1] <= area <= resolution[0] * resolution[1]
    assert all(side % card.token_multiple == 0 and 256 <= side <= 2048 for size in sizes for side in size)


def test_one_bucket_nearly_has_the_shape_of_the_resolution() -> None:
    assert Buckets(rules()).fit((2000, 2000)).bucket.size in {(1024, 960), (960, 1024)}
    assert Buckets(rules(multiple=16)).fit((2000, 2000)).bucket.size in {(1024, 1008), (1008, 1024)}
    wide = Buckets(rules((1152, 896))).fit((2304, 1792))
    assert (wide.bucket.size, wide.cropped) == ((1152, 896), 0.0)


def test_the_finest_grid_of_the_family_replaces_bucket_reso_steps() -> None:
    assert bucket_resolutions(rules(bucket_reso_steps=512)) == bucket_resolutions(rules(bucket_reso_steps=64))
    assert len(bucket_resolutions(rules(multiple=16))) == 12


@pytest.mark.parametrize("image", [(1000, 1000), (1600, 1200), (3000, 2000), (1080, 1920), (1340, 1000)], ids=str)
def test_an_image_is_in_the_bucket_that_crops_it_least(image: tuple[int, int]) -> None:
    def left(size: tuple[int, int]) -> float:
        scale = max(size[0] / image[0], size[1] / image[1])
        return size[0] * size[1] / (image[0] * image[1] * scale**2)

    fit = Buckets(rules()).fit(image)
    most = max(map(left, bucket_resolutions(rules())))
    assert fit is not None
    assert left(fit.bucket.size) == most
    assert fit.cropped == pytest.approx(1 - most, abs=0.002)


def test_bounds_that_leave_no_elongated_bucket_are_reported() -> None:
    assert equal_tokens_need(rules()) is None
    assert equal_tokens_need(rules(max_bucket_reso=1024)) == (
        "max_bucket_reso: 1024 leaves 1 size with this number of tokens, so images are cropped; raise it to 2048"
    )
    assert equal_tokens_need(rules(min_bucket_reso=960)) == (
        "min_bucket_reso: 960 leaves 2 sizes with this number of tokens, so images are cropped; lower it to 480"
    )


def test_images_that_are_never_enlarged_cannot_have_equal_tokens(tmp_path: Path) -> None:
    both = {"enable_bucket": True, "equal_token_buckets": True, "bucket_no_upscale": True}
    settings = from_values(script_for("sdxl", "lora"), {"train_data_dir": str(tmp_path), "resolution": "64", **both})
    told = [str(problem) for problem in settings.problems() if "bucket_no_upscale" in problem.names]
    assert told == [
        "bucket_no_upscale: does not work with equal_token_buckets, since small images would have fewer tokens; turn "
        "one of them off"
    ]
    with pytest.raises(ValueError, match="bucket_no_upscale: does not work with equal_token_buckets"):
        BucketRules(resolution=(64, 64), **both)


def test_each_dataset_of_a_file_chooses_for_its_own_resolution(tmp_path: Path) -> None:
    make_folder(tmp_path / "images", [(128, 128), (256, 128), (128, 300)])
    file = tmp_path / "data.json"
    subsets = [{"image_dir": str(tmp_path / "images")}]
    datasets = [
        {"resolution": 192, "equal_token_buckets": True, "subsets": subsets},
        {"resolution": 128, "equal_token_buckets": True, "subsets": subsets},
        {"resolution": 128, "subsets": subsets},
    ]
    file.write_text(json.dumps({"general": {"max_bucket_reso": 512}, "datasets": datasets}))
    plan = plan_data(settings_of(dataset_config=file), card_of("sdxl"), seed=1, warn=pytest.fail)
    areas: dict[int, set[int]] = {}
    for item in plan.items:
        areas.setdefault(item.dataset, set()).add(item.fit.bucket.width * item.fit.bucket.height)
    assert [len(each) for each in areas.values()] == [1, 1, 3]
    assert areas[0] != areas[1]


def test_images_keep_their_train_resolution_and_a_different_token_count_is_reported(tmp_path: Path) -> None:
    paths = make_folder(tmp_path, [(128, 128), (128, 128)])
    wanted = {paths[0].stem: (1008, 1024), paths[1].stem: (64, 64)}
    entries = {name: {"caption": "x", "train_resolution": size} for name, size in wanted.items()}
    (tmp_path / "meta.json").write_text(json.dumps(entries))
    told: list[str] = []
    values = {"in_json": tmp_path / "meta.json", "train_data_dir": tmp_path, "resolution": "1024"}
    settings = settings_of(**values, max_bucket_reso=2048, equal_token_buckets=True)
    plan = plan_data(settings, card_of("flux"), seed=1, warn=told.append)
    assert [item.fit.bucket.size for item in plan.items] == [(1008, 1024), (64, 64)]
    assert told[-1] == (
        "equal_token_buckets: the train_resolution of 1 image in 'meta.json' has a different number of tokens; "
        "prepare the metadata file with equal_token_buckets too"
    )


def test_adding_an_image_does_not_change_the_bucket_of_others(tmp_path: Path) -> None:
    def buckets() -> dict[Path, BucketFit]:
        plan = plan_of(tmp_path / "train", equal_token_buckets=True, max_bucket_reso=256)
        return {item.path: item.fit for item in plan.items}

    make_folder(tmp_path / "train/1_cat", [(64, 64), (128, 64)])
    before = buckets()
    make_folder(tmp_path / "train/1_dog", [(256, 40)] * 3)
    assert before.items() < buckets().items()
