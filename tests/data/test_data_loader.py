"""Batches: complete, the same with any number of workers, continued exactly, and right in every tensor."""

import pickle
import tracemalloc
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sd_scripts.data.batch import Batch, stack_by_name
from sd_scripts.data.plan.dataset import DataPlan
from sd_scripts.data.plan.epochs import batch_shapes, plan_epoch
from sd_scripts.data.reader import BatchReader
from sd_scripts.families.sdxl.objective import conditioning
from tests.support.data import loader_of, make_folder, make_image, plan_of

SIZES = [(64, 64), (64, 64), (128, 64), (64, 128), (64, 64), (100, 50), (70, 60)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_folder(tmp_path / "train/3_cat", SIZES)
    return tmp_path / "train"


def numbers_of(batch: Batch) -> list[str]:
    """Which images of `make_folder` are in a batch: their captions identify them, shuffled or not."""
    return [tag for caption in batch.captions for tag in caption.text.split(", ") if tag.isdecimal()]


def assert_equal(first: list[Batch], second: list[Batch]) -> None:
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one.captions == other.captions
        assert one.pixels is not None
        assert other.pixels is not None
        assert torch.equal(one.pixels, other.pixels)
        assert torch.equal(one.conditioning["sizes"], other.conditioning["sizes"])


LIVELY = {
    "shuffle_caption": True,
    "caption_dropout_rate": 0.3,
    "flip_aug": True,
    "color_aug": True,
    "random_crop": True,
    "train_batch_size": 2,
}


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_every_repeat_is_seen_once_in_every_epoch(root: Path, workers: int) -> None:
    plan = plan_of(root, train_batch_size=2)
    loader = loader_of(plan, workers)
    for epoch in (1, 2):
        batches = list(loader.epoch(epoch))
        assert len(batches) == len(loader)
        seen = Counter(caption.text for batch in batches for caption in batch.captions)
        assert seen == {item.caption: 3 for item in plan.items}


def test_workers_change_nothing(root: Path) -> None:
    plan = plan_of(root, **LIVELY)
    alone = list(loader_of(plan).epoch(2))
    assert_equal(alone, list(loader_of(plan, workers=2).epoch(2)))


def test_an_epoch_resumed_in_the_middle_equals_an_uninterrupted_one(root: Path) -> None:
    plan = plan_of(root, **LIVELY)
    whole = list(loader_of(plan).epoch(3))
    assert_equal(whole[4:], list(loader_of(plan, workers=1).epoch(3, start=4)))


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_an_abandoned_epoch_does_not_disturb_the_next(root: Path, workers: int, persistent: bool) -> None:
    plan = plan_of(root, **LIVELY)
    loader = loader_of(plan, workers, persistent=persistent)
    next(loader.epoch(1))
    assert_equal(list(loader.epoch(2)), list(loader_of(plan).epoch(2)))


def test_epochs_and_repeats_differ_in_order_and_randomness(root: Path) -> None:
    plan = plan_of(root, **{**LIVELY, "caption_dropout_rate": 0.0})
    loader = loader_of(plan)
    first, second = list(loader.epoch(1)), list(loader.epoch(2))
    order = [[image for batch in epoch for image in numbers_of(batch)] for epoch in (first, second)]
    assert order[0] != order[1]
    assert sorted(order[0]) == sorted(order[1])
    captions = {caption.text for batch in first for caption in batch.captions if "0" in caption.text}
    assert len(captions) > 1


def test_loading_leaves_the_global_generators_alone(root: Path) -> None:
    loader = loader_of(plan_of(root, **LIVELY))
    before, numbers = torch.get_rng_state(), np.random.get_state()[1].copy()
    list(loader.epoch(1))
    assert torch.equal(before, torch.get_rng_state())
    assert (numbers == np.random.get_state()[1]).all()


def test_a_batch_gives_sizes_height_first(root: Path) -> None:
    plan = plan_of(root)
    wide = next(batch for batch in loader_of(plan).epoch(1) if numbers_of(batch) == ["2"])
    assert wide.pixels is not None
    assert wide.conditioning["sizes"].tolist() == [[64, 128, 16, 0, *wide.pixels.shape[2:]]]
    assert wide.pixels.dtype == torch.float32
    assert -1 <= wide.pixels.min() < wide.pixels.max() <= 1


def test_pixels_are_the_images(root: Path) -> None:
    for batch in loader_of(plan_of(root)).epoch(1):
        if numbers_of(batch) == ["0"]:
            expected = torch.from_numpy(np.array(Image.open(root / "3_cat/00.png"))).permute(2, 0, 1) / 127.5 - 1
            assert batch.pixels is not None
            assert torch.allclose(batch.pixels[0], expected, atol=1e-6)


def test_a_flip_mirrors_the_image_and_its_mask(tmp_path: Path) -> None:
    image = make_image(tmp_path / "train/8_cat/a.png")
    mask = np.zeros((64, 64, 3), np.uint8)
    mask[:, :16] = 255
    (tmp_path / "masks").mkdir()
    Image.fromarray(mask).save(tmp_path / "masks/a.png")
    plan = plan_of(
        tmp_path / "train", flip_aug=True, masked_loss=True, conditioning_data_dir=tmp_path / "masks", told=[]
    )
    straight = torch.from_numpy(np.array(Image.open(image))).permute(2, 0, 1) / 127.5 - 1
    flips = 0
    for batch in loader_of(plan).epoch(1):
        assert batch.pixels is not None
        assert batch.mask is not None
        flipped = not torch.allclose(batch.pixels[0], straight, atol=1e-6)
        flips += flipped
        assert torch.allclose(batch.pixels[0].flip(2) if flipped else batch.pixels[0], straight, atol=1e-6)
        assert batch.mask.shape == (1, 1, 64, 64)
        assert batch.mask[0, 0, 0, -1 if flipped else 0] == 1
        assert batch.mask.sum() == 64 * 16
    assert 0 < flips < 8


def test_opacity_is_a_mask_with_alpha_mask(tmp_path: Path) -> None:
    pixels = np.full((64, 64, 4), 255, np.uint8)
    pixels[:32, :, 3] = 0
    (tmp_path / "train/1_cat").mkdir(parents=True)
    Image.fromarray(pixels).save(tmp_path / "train/1_cat/a.png")
    (tmp_path / "train/1_cat/a.txt").write_text("words")
    (batch,) = loader_of(plan_of(tmp_path / "train", alpha_mask=True)).epoch(1)
    assert batch.mask is not None
    assert batch.mask[0, 0, :32].sum() == 0
    assert batch.mask[0, 0, 32:].min() == 1


def test_an_unreadable_image_is_reported_once_and_replaced(tmp_path: Path) -> None:
    paths = make_folder(tmp_path / "train/4_cat", [(64, 64)] * 3)
    plan = plan_of(tmp_path / "train", train_batch_size=3)
    paths[1].write_bytes(paths[1].read_bytes()[:200])
    told: list[str] = []
    batches = list(loader_of(plan, warn=told.append).epoch(1))
    assert [len(batch) for batch in batches] == [3] * 4
    assert not any("1" in numbers_of(batch) for batch in batches)
    assert len(told) == 1
    assert "01.png cannot be read" in told[0]


def test_an_unreadable_bucket_stops_the_run_in_one_sentence(tmp_path: Path) -> None:
    (path,) = make_folder(tmp_path / "train/4_cat", [(64, 64)])
    plan = plan_of(tmp_path / "train")
    path.unlink()
    with pytest.raises(ValueError, match=r"train_data_dir: none of the images of a bucket can be read.*00\.png"):
        list(loader_of(plan, warn=lambda text: None).epoch(1))


def test_dropped_images_are_reported_and_an_epoch_without_batches_is_refused(root: Path) -> None:
    told: list[str] = []
    loader_of(plan_of(root, train_batch_size=4), warn=told.append, short_batches="drop")
    assert len(told) == 1
    assert told[0].startswith("train_batch_size: ")
    with pytest.raises(ValueError, match="train_batch_size: no bucket has enough images"):
        loader_of(plan_of(root, train_batch_size=64), warn=told.append, short_batches="drop")


def test_a_reader_can_be_sent_to_a_worker_that_was_not_forked(root: Path) -> None:
    plan = plan_of(root)
    reader = BatchReader(plan, conditioning=conditioning)
    copied, remarks = pickle.loads(pickle.dumps(reader))[plan_epoch(plan, 1)[0]]
    assert copied is not None
    assert not remarks
    assert_equal([copied], [next(loader_of(plan).epoch(1))])


def test_ranks_see_the_same_number_of_batches_and_all_images_together(root: Path) -> None:
    plan = plan_of(root, train_batch_size=2)
    ranks = [loader_of(plan, rank=rank, world=2) for rank in (0, 1)]
    assert len(ranks[0]) == len(ranks[1])
    batches = [list(loader.epoch(1)) for loader in ranks]
    seen = Counter(caption.text for share in batches for batch in share for caption in batch.captions)
    assert all(seen[item.caption] >= 3 for item in plan.items)


def listed_epoch(plan: DataPlan, epoch: int, short_batches: str) -> list[Any]:
    """The original plan of an epoch, every repeat in a list: a resumed run must reproduce it."""
    random = Random(f"{plan.seed}/order/{epoch}")
    batches = []
    for (dataset, bucket), items in plan.groups.items():
        size = plan.blueprint.datasets[dataset].batch_size
        picks = [(item.index, repeat) for item in items for repeat in range(item.repeats)]
        random.shuffle(picks)
        if short_batches == "fill":
            missing = -len(picks) % size
            picks += [(picks[turn % len(picks)][0], 1_000_000 + turn) for turn in range(missing)]
        batches += [
            (dataset, bucket, tuple(picks[start : start + size]))
            for start in range(0, len(picks), size)
            if short_batches != "drop" or start + size <= len(picks)
        ]
    random.shuffle(batches)
    return batches


@pytest.mark.parametrize("short_batches", ["keep", "fill", "drop"])
@pytest.mark.parametrize("size", [1, 3, 50])
def test_an_epoch_shuffles_all_repeats_together(root: Path, short_batches: Any, size: int) -> None:
    make_folder(root / "5_dog", [(64, 64), (64, 128)])
    plan = plan_of(root, train_batch_size=size)
    for epoch in (1, 2):
        batches = plan_epoch(plan, epoch, short_batches=short_batches)
        assert [(each.dataset, each.bucket, each.picks) for each in batches] == listed_epoch(plan, epoch, short_batches)


def test_an_epoch_of_many_repeats_needs_little_memory(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", [(64, 64)])
    plan = plan_of(tmp_path / "train", num_repeats=100_000)
    loader = loader_of(plan)
    tracemalloc.start()
    next(loader.epoch(1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(loader) == 100_000
    assert peak < 4_000_000  # 16 bytes a repeat; a list of batches took 50 MB


def test_short_batches_are_kept_dropped_or_filled(root: Path) -> None:
    plan = plan_of(root, train_batch_size=4)
    for choice in ("keep", "drop", "fill"):
        shapes = batch_shapes(plan, short_batches=choice)
        assert {shape.images for shape in shapes} >= {4}
        assert (len({shape.images for shape in shapes}) > 1) == (choice == "keep")
        loader = loader_of(plan, warn=lambda text: None, short_batches=choice)
        counted = Counter((*batch.pixels.shape[2:], len(batch)) for batch in loader.epoch(1))
        assert counted == {
            (shape.extent.height, shape.extent.width, shape.images): count for shape, count in shapes.items()
        }


def test_token_warm_up_follows_the_step_of_the_batch(tmp_path: Path) -> None:
    make_folder(tmp_path / "train/8_cat", [(64, 64)], caption="a, b, c")
    plan = plan_of(tmp_path / "train", token_warmup_step=4, token_warmup_min=1)
    counts = [
        len(batch.captions[0].text.split(","))
        for batch in loader_of(plan, accumulation=2, max_train_steps=100).epoch(1)
    ]
    assert counts == [1, 1, 1, 1, 2, 2, 3, 3]


def test_a_regularisation_image_is_weighted_by_prior_loss_weight(tmp_path: Path) -> None:
    make_folder(tmp_path / "train/2_cat", [(64, 64)])
    make_folder(tmp_path / "reg/1_animal", [(64, 64)])
    plan = plan_of(tmp_path / "train", reg_data_dir=tmp_path / "reg", prior_loss_weight=0.25)
    weights = Counter(batch.loss_weight.item() for batch in loader_of(plan).epoch(1))
    assert weights == {1.0: 2, 0.25: 2}


def test_texts_of_different_lengths_are_padded_to_the_batch() -> None:
    short, long = torch.ones(2, 3), torch.ones(4, 3)
    rows = [{"states": short, "mask": short[:, 0] > 0}, {"states": long, "mask": long[:, 0] > 0}]
    text = stack_by_name(rows)
    assert torch.equal(text["states"].sum(2), torch.tensor([[3.0, 3, 0, 0], [3, 3, 3, 3]]))
    assert text["mask"].tolist() == [[True, True, False, False], [True] * 4]
