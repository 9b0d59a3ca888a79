"""The smaller sizes at high noise: of each bucket, of batches, control images and caches; epochs stay complete."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sd_scripts.data.caches.caching import CacheJob
from sd_scripts.data.caches.latent_caching import cache_latents
from sd_scripts.data.loader import BatchLoader
from sd_scripts.data.plan.buckets import BucketRules, Extent, bucket_resolutions
from sd_scripts.data.plan.dataset import DataPlan, plan_data
from sd_scripts.data.plan.smaller import SmallerSizes
from sd_scripts.data.reader import BatchReader
from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.flux.vae import LATENTS
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings
from tests.support.data import make_folder

RULES = BucketRules(resolution=(1024, 1024), enable_bucket=True, min_bucket_reso=512, max_bucket_reso=2048)
SIZES = [(128, 128)] * 3 + [(192, 64), (96, 160), (160, 96), (64, 64)]
SMALL = {"enable_bucket": True, "min_bucket_reso": 64, "max_bucket_reso": 256, "bucket_reso_steps": 32}
SMALL |= {"resolution": "128", "caption_extension": ".txt", "highnoise_resolution": "96", "train_batch_size": 2}


def plan_of(root: Path, family: str = "flux", warn: Any = pytest.fail, **values: Any) -> DataPlan:
    settings = Settings(script_for(family, "lora"), SMALL | {"train_data_dir": str(root), **values})
    return plan_data(settings, card_of(family), seed=7, warn=warn)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last image is smaller than highnoise_resolution if it is not enlarged."""
    folder = tmp_path_factory.mktemp("smaller")
    make_folder(folder / "train/3_cat", SIZES)
    return folder / "train"


def by_turns(bucket: Extent, seed: int) -> bool:
    return seed % 2 == 0


def test_every_bucket_keeps_its_shape_at_a_smaller_size_of_at_most_the_area() -> None:
    sizes = SmallerSizes(RULES, (768, 768), 16)
    assert sizes.of(Extent(1024, 1024)) == Extent(768, 768)
    assert sizes.of(Extent(832, 1216)) == Extent(624, 912)
    assert sizes.of(Extent(768, 768)) is None
    for bucket in bucket_resolutions(RULES):
        small = sizes.of(Extent(*bucket))
        if small:
            assert small.pixels <= 768 * 768
            assert small.width % 16 == small.height % 16 == 0
            assert (small.width / small.height) / (bucket[0] / bucket[1]) == pytest.approx(1, abs=0.02)
            assert small.pixels > 0.9 * min(768 * 768, math.prod(bucket))


def test_buckets_with_equal_tokens_are_equal_at_the_smaller_size_too() -> None:
    rules = replace(RULES, equal_token_buckets=True, token_multiple=16)
    sizes = SmallerSizes(rules, (768, 768), 16)
    smaller = [sizes.of(Extent(*bucket)) for bucket in bucket_resolutions(rules)]
    assert len({small.pixels for small in smaller if small}) == 1
    assert all(smaller)


def test_an_epoch_has_every_repeat_once_and_batches_of_one_size(root: Path) -> None:
    plan = plan_of(root, bucket_no_upscale=True)
    seen: Counter[str] = Counter()
    extents: dict[bool | None, set[Extent]] = {True: set(), False: set(), None: set()}
    for batch in BatchLoader(BatchReader(plan), warn=pytest.fail, at_high_noise=by_turns).epoch(1):
        assert batch.pixels is not None
        assert batch.pixels.shape[-2:] == (batch.extent.height, batch.extent.width)
        seen.update(caption.text for caption in batch.captions)
        extents[batch.high_noise].add(batch.extent)
    assert len(seen) == len(SIZES)
    assert set(seen.values()) == {3}
    assert Extent(64, 64) in extents[None], "an image that is small anyway has one size"
    larger = {extent for _, extent in plan.smaller_buckets()}
    assert extents[True] <= {*plan.smaller_buckets().values()}
    assert extents[False] <= larger
    assert not extents[None] & larger
    assert Extent(96, 96) in extents[True]
    assert Extent(128, 128) in extents[False]


def test_all_processes_train_a_step_at_the_same_noise_level(root: Path) -> None:
    plan = plan_of(root)
    levels = [
        [batch.high_noise for batch in loader.epoch(1)]
        for loader in (
            BatchLoader(BatchReader(plan), warn=pytest.fail, at_high_noise=by_turns, rank=rank, world=2)
            for rank in (0, 1)
        )
    ]
    assert levels[0] == levels[1]
    assert {*levels[0]} == {True, False}


def test_an_epoch_is_continued_with_the_same_noise_levels(root: Path) -> None:
    loader = BatchLoader(BatchReader(plan_of(root)), warn=pytest.fail, at_high_noise=by_turns)
    whole = [batch.high_noise for batch in loader.epoch(2)]
    assert [batch.high_noise for batch in loader.epoch(2, 4)] == whole[4:]
    assert whole != [batch.high_noise for batch in loader.epoch(1)]


@pytest.mark.parametrize(("values", "smaller"), [({}, (96, 96)), ({"control_resolution": "64"}, (64, 64))])
def test_control_images_follow_the_size_of_their_sample_unless_they_have_their_own(
    tmp_path: Path, values: dict[str, Any], smaller: tuple[int, int]
) -> None:
    make_folder(tmp_path / "train/1_cat", [(128, 128)] * 2)
    make_folder(tmp_path / "before", [(128, 128)] * 2)
    plan = plan_of(tmp_path / "train", "flux_kontext", control_directory=str(tmp_path / "before"), **values)
    assert {*plan.smaller_buckets().values()} == {Extent(96, 96, controls=(smaller,))}
    (batch,) = BatchLoader(BatchReader(plan), warn=pytest.fail, at_high_noise=lambda *_: True).epoch(1)
    assert [control.shape for control in batch.controls] == [(2, 3, *smaller)]


@pytest.mark.parametrize("to_disk", [False, True])
def test_latents_of_both_sizes_are_cached_and_read(root: Path, to_disk: bool) -> None:
    plan = plan_of(root)
    encoded: list[tuple[int, ...]] = []

    def encode(pixels: Tensor) -> Tensor:
        encoded.append(tuple(pixels.shape))
        return torch.nn.functional.avg_pool2d(pixels, 8)[:, [0] * 16].contiguous()

    def cached() -> Any:
        job = CacheJob(warn=pytest.fail, to_disk=to_disk)
        return cache_latents(plan, encode, encoder_key="k", layout=LATENTS, job=job)

    store = cached()
    assert len(encoded) == 2 * len(SIZES)
    assert {shape[-2:] for shape in encoded} >= {(96, 96), (128, 128)}
    if to_disk:
        cached()
        assert len(encoded) == 2 * len(SIZES), "both sizes are valid in one file"
    for batch in BatchLoader(BatchReader(plan, latents=store), warn=pytest.fail, at_high_noise=by_turns).epoch(1):
        assert batch.latents is not None
        assert batch.latents.shape[-2:] == (batch.extent.height // 8, batch.extent.width // 8)


def test_validation_images_have_one_size(root: Path) -> None:
    plan = plan_of(root, validation_split=0.3)
    assert plan.validation
    assert plan.smaller_buckets()
    assert not plan.validation.smaller_buckets()


def test_a_resolution_that_no_bucket_exceeds_is_reported(root: Path) -> None:
    remarks: list[str] = []
    plan_of(root, warn=remarks.append, highnoise_resolution="160,128")
    assert remarks == ["highnoise_resolution: has no effect because no bucket is larger than 160x128; set it lower"]
