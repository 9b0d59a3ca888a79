"""Buckets against results of the original implementation, and the rules around them."""

import json
from pathlib import Path

import pytest

from sd_scripts.data.plan.buckets import BucketRules, Buckets, Extent, bucket_resolutions, crop_ltrb
from sd_scripts.families.sdxl.objective import crop_top_left

REFERENCE = json.loads((Path(__file__).parents[1] / "reference/fixtures_bucketing.json").read_text())


def rules_of(case: dict) -> BucketRules:
    return BucketRules(
        resolution=tuple(case["max_reso"]),
        enable_bucket=True,
        min_bucket_reso=case["min"],
        max_bucket_reso=case["max"],
        bucket_reso_steps=case["steps"],
        bucket_no_upscale=case.get("no_upscale", False),
    )


@pytest.mark.parametrize(
    "case", REFERENCE["bucket_resolutions"], ids=lambda case: f"{case['max_reso']}/{case['steps']}"
)
def test_bucket_resolutions_equal_the_reference(case: dict) -> None:
    sizes = bucket_resolutions(rules_of(case))
    assert sizes == [tuple(size) for size in case["resos"]]
    assert len({frozenset(size) for size in sizes}) == case["n_unordered"]


@pytest.mark.parametrize("case", REFERENCE["select_bucket"], ids=lambda case: f"{case['image']}-{case['bucket']}")
def test_the_bucket_of_an_image_equals_the_reference(case: dict) -> None:
    fit = Buckets(rules_of(case)).fit(tuple(case["image"]))
    assert fit is not None
    assert (list(fit.bucket.size), list(fit.resized)) == (case["bucket"], case["resized"])
    assert fit.ar_error == pytest.approx(case["ar_error"])


@pytest.mark.parametrize(
    "case", REFERENCE["crop_ltrb"] + REFERENCE["select_bucket"], ids=lambda case: str(case["image"])
)
def test_the_crop_conditioning_equals_the_reference(case: dict) -> None:
    assert crop_ltrb(tuple(case["bucket"]), tuple(case["image"])) == pytest.approx(case["crop_ltrb"])


def test_the_crop_conditioning_of_a_flipped_image_counts_from_the_right_edge() -> None:
    assert crop_top_left((832, 1216), (1000, 1500), flipped=False) == (0, 10)
    assert crop_top_left((832, 1216), (1000, 1500), flipped=True) == (0, 11)


def test_without_buckets_every_image_has_the_resolution() -> None:
    buckets = Buckets(BucketRules(resolution=(512, 768)))
    for image in [(10, 10), (3000, 500), (512, 768)]:
        fit = buckets.fit(image)
        assert fit is not None
        assert fit.bucket == Extent(512, 768)
        assert fit.resized[0] >= 512
        assert fit.resized[1] >= 768


def test_bounds_move_outwards_to_the_grid() -> None:
    rules = BucketRules(
        resolution=(512, 512), enable_bucket=True, min_bucket_reso=300, max_bucket_reso=1000, bucket_reso_steps=64
    )
    assert rules.bounds == (256, 1024)
    small = BucketRules(resolution=(256, 256), enable_bucket=True, min_bucket_reso=32, max_bucket_reso=512)
    assert min(min(size) for size in bucket_resolutions(small)) == 64


def test_a_resolution_outside_the_bounds_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="max_bucket_reso: 1024 is smaller than"):
        BucketRules(resolution=(1536, 1536), enable_bucket=True)
    with pytest.raises(ValueError, match="min_bucket_reso: 256 is larger than"):
        BucketRules(resolution=(128, 512), enable_bucket=True)
    BucketRules(resolution=(1536, 1536), enable_bucket=True, bucket_no_upscale=True)


@pytest.mark.parametrize(("steps", "rounded"), [(1, 32), (16, 32), (32, 32), (40, 64), (64, 64)])
def test_steps_the_family_does_not_support_are_rounded_up(steps: int, rounded: int) -> None:
    rules = BucketRules(resolution=(512, 512), enable_bucket=True, bucket_reso_steps=steps).rounded(32)
    assert rules.bucket_reso_steps == rounded
    assert rules.resolution == (512, 512)
    assert all(side % 32 == 0 for size in bucket_resolutions(rules) for side in size)


def test_a_resolution_the_family_does_not_support_is_rounded_to_the_nearest() -> None:
    assert BucketRules(resolution=(500, 8)).rounded(32).resolution == (512, 32)
    assert BucketRules(resolution=(1000, 512), bucket_reso_steps=1).rounded(32).resolution == (992, 512)


def test_an_image_smaller_than_a_step_has_no_bucket() -> None:
    rules = BucketRules(resolution=(512, 512), enable_bucket=True, bucket_no_upscale=True)
    assert Buckets(rules).fit((40, 300)) is None
