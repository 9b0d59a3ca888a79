"""Validation loss: on images that training never sees, the same when measured again, and without a trace."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.training import TEXT_ENCODERS_TOO, Run, equal, images, train

pytestmark = pytest.mark.run

SPLIT = {"validation_split": 0.4, "max_train_steps": 4, "validation_seed": 3}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images(tmp_path_factory.mktemp("data") / "images", count=5)


@pytest.mark.parametrize("where", [{}, TEXT_ENCODERS_TOO], ids=["cached", "encoded"])
def test_the_same_weights_measure_the_same(
    where: dict[str, Any], data: Path, any_miniature: Any, tmp_path: Path
) -> None:
    """At a rate that moves nothing, and with dropouts and shuffling that must not reach validation."""
    options = {**SPLIT, **where, "train_data_dir": data, "learning_rate": 1e-12, "network_dropout": 0.5}
    if where:
        options["shuffle_caption"] = True
    told = train(any_miniature, tmp_path / "out", validate_every_n_steps=1, **options).events_of("validation")
    assert len(told) == 4
    assert {round(event["loss"], 6) for event in told} == {round(told[0]["loss"], 6)}


def test_no_image_is_in_both_splits_and_every_epoch_is_validated_by_default(
    data: Path, any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sd_scripts.training.trainer import Trainer
    from sd_scripts.training.validation import Validator

    seen: dict[str, set[str]] = {"training": set(), "validation": set()}

    def note(kind: str, loader: Any) -> None:
        epoch = loader.epoch

        def noted(*arguments: Any) -> Any:
            for batch in epoch(*arguments):
                seen[kind].update(batch.captions)
                yield batch

        loader.epoch = noted

    init = Trainer.__init__

    def with_notes(trainer: Trainer, *arguments: Any) -> None:
        init(trainer, *arguments)
        note("training", trainer.loader)
        assert isinstance(trainer.validator, Validator)
        note("validation", trainer.validator._loss._loader)

    monkeypatch.setattr(Trainer, "__init__", with_notes)
    made = train(any_miniature, tmp_path / "out", train_data_dir=data, **{**SPLIT, "max_train_steps": 6})
    assert [event["step"] for event in made.events_of("validation")] == [3, 6]
    assert len(seen["training"]) == 3
    assert len(seen["validation"]) == 2
    assert not seen["training"] & seen["validation"]


def test_max_validation_steps_measures_less(data: Path, any_miniature: Any, tmp_path: Path) -> None:
    options = {**SPLIT, "train_data_dir": data, "validate_every_n_steps": 4}
    measured = {}
    for name, limit in (("all", {}), ("first", {"max_validation_steps": 1})):
        run = train(any_miniature, tmp_path / name, **options, **limit)
        (loss,) = (event["loss"] for event in run.events_of("validation"))
        done = [event["done"] for event in run.events_of("phase") if event["name"] == "validating" and "done" in event]
        measured[name] = loss, max(done)
    assert [batches for _, batches in measured.values()] == [2, 1]
    assert measured["first"][0] != measured["all"][0]


def test_validating_a_schedule_free_optimizer_leaves_no_trace(data: Path, any_miniature: Any, tmp_path: Path) -> None:
    options = {**SPLIT, "train_data_dir": data, "optimizer_type": "AdamWScheduleFree", "learning_rate": 1e-2}
    looked: Run = train(any_miniature, tmp_path / "looked", validate_every_n_steps=1, **options)
    left: Run = train(any_miniature, tmp_path / "left", validate_every_n_steps=100, **options)
    assert looked.losses == left.losses
    assert equal(looked.tensors(), left.tensors())
