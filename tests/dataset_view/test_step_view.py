"""What a step is shown to see is what the trainer's loader gives to it."""

from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch

from sd_scripts.data.batch import Batch
from sd_scripts.data.loader import BatchLoader
from sd_scripts.data.plan import dataset
from sd_scripts.data.reader import BatchReader
from sd_scripts.dataset_view.step_view import answer_of, step_of
from sd_scripts.dataset_view.view import plan_view
from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.common.family import family_of
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings
from tests.dataset_view.test_view import settings_of
from tests.support.data import make_folder, make_image, plan_data

pytestmark = pytest.mark.fast
VARIED: dict[str, Any] = {
    "seed": 3,
    "flip_aug": True,
    "random_crop": True,
    "color_aug": True,
    "shuffle_caption": True,
    "caption_dropout_rate": 0.2,
    "caption_tag_dropout_rate": 0.3,
    "enable_wildcard": True,
    "token_warmup_step": 5,
    "masked_loss": True,
    "alpha_mask": True,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    make_folder(root / "3_cat", [(80, 64), (70, 100), (64, 64)], "{a|b|c}, d, e, f")
    make_image(root / "2_dog" / "clear.png", (90, 70), 5, "RGBA")
    return root


def trained(settings: Settings, number: int, *, accumulation: int, steps: int, per_epoch: int) -> list[Batch]:
    """Return the batches of a step as the trainer's loader yields them."""
    plan = plan_data(settings, seed=3, warn=lambda _: None)
    reader = BatchReader(plan, max_train_steps=steps)
    loader = BatchLoader(reader, warn=pytest.fail, accumulation=accumulation, world=2)
    epoch, step = divmod(number - 1, per_epoch)
    return list(islice(loader.epoch(epoch + 1, step * accumulation), accumulation))


def test_the_batches_of_a_step_are_the_loader_s_bit_for_bit(folder: Path) -> None:
    more = {
        "train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_processes": 2,
        "max_train_epochs": 4,
    }
    settings = settings_of(train_data_dir=folder, **VARIED, **more)
    for number in (1, 2, 3, 4, 7):
        step = step_of(plan_view(settings), number)
        per_epoch = step.steps // 4
        batches = trained(settings, number, accumulation=2, steps=step.steps, per_epoch=per_epoch)
        assert len(batches) == len(step.read)
        for batch, (_, shown, _) in zip(batches, step.read, strict=True):
            assert batch.captions == shown.captions
            assert batch.pixels is not None
            assert shown.pixels is not None
            assert batch.mask is not None
            assert shown.mask is not None
            assert torch.equal(batch.pixels, shown.pixels)
            assert torch.equal(batch.mask, shown.mask)


def test_a_step_at_high_noise_has_the_smaller_images_that_the_trainer_reads(folder: Path) -> None:
    values: dict[str, Any] = {"resolution": "128", "max_bucket_reso": 256, "highnoise_resolution": "64", "seed": 3}
    values |= {"timestep_sampling": "shift", "train_data_dir": str(folder), "max_train_steps": 12}
    settings = Settings(script_for("flux", "lora"), settings_of().changed() | values)
    plan = dataset.plan_data(settings, card_of("flux"), seed=3, warn=lambda _: None)
    family = family_of("flux")
    decides = family.high_noise(family.objective_options(settings)).decides
    loader = BatchLoader(BatchReader(plan, max_train_steps=12), warn=pytest.fail, at_high_noise=decides)
    levels = set()
    for number, batch in zip(range(1, 13), chain(loader.epoch(1), loader.epoch(2)), strict=False):
        (sample,) = answer_of(plan_view(settings), number)["samples"]
        assert (sample["bucket"], sample["high_noise"]) == (str(batch.extent), batch.high_noise)
        levels.add(batch.high_noise)
    assert levels == {True, False}


def test_a_step_names_its_images_and_both_captions(folder: Path) -> None:
    settings = settings_of(train_data_dir=folder, caption_prefix="sks", max_train_steps=9, seed=3)
    answer = answer_of(plan_view(settings), 2)
    (sample,) = answer["samples"]
    assert (answer["step"], answer["steps"], answer["seed"], answer["seed_is_set"]) == (2, 9, 3, True)
    assert sample["caption"] == f"sks {sample['written']}"
    assert Path(sample["path"]).parent.parent == folder


def test_a_step_beyond_the_run_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"^step: the run has steps 1 to 9; choose one of these$"):
        step_of(plan_view(settings_of(train_data_dir=folder, max_train_steps=9)), 10)
