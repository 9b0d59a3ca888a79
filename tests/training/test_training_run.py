"""Runs of the trainer: their files, seeds, flags, workers. Behaviour common to all is in test_family_contract.py."""

import re
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from sd_scripts.data.sources import reading_progress
from sd_scripts.formats.toml_files import read_toml
from sd_scripts.training import context
from tests.support.training import CAPTIONS_IN_THE_STEP, Run, equal, images, run, settings_for, train

pytestmark = pytest.mark.run


@pytest.fixture(scope="module")
def plain(any_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three steps without anything special. Do not write to it."""
    return train(any_miniature, tmp_path_factory.mktemp("plain") / "out")


def test_the_lora_is_readable_by_everyone_who_may_read_the_folder(plain: Run) -> None:
    (plain.output / "touched").touch()
    assert (plain.output / "short.safetensors").stat().st_mode == (plain.output / "touched").stat().st_mode
    (plain.output / "touched").unlink()


def test_the_settings_of_the_run_are_kept_in_its_folder(plain: Run) -> None:
    kept = read_toml(plain.folder.config)
    assert kept["network_dim"] == 2
    assert kept["learning_rate"] == 0.01
    assert "wandb_api_key" not in kept


def test_the_console_shows_the_progress_of_long_phases_and_steps(
    any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(context, "LOG_SECONDS", 0)
    monkeypatch.setattr(reading_progress, "SECONDS", 0)
    train(any_miniature, tmp_path / "out", max_train_steps=1, train_data_dir=images(tmp_path / "images"))
    said = capsys.readouterr().err
    assert "reading the dataset: 4 of 4\n" in said  # captions and sizes
    assert "caching latents: 2 of 2\n" in said
    assert re.search(r"1/1 .*loss=", said)  # the bar of the steps


def test_a_random_seed_is_recorded_and_repeats_the_run(any_miniature: Any, tmp_path: Path) -> None:
    drawn = train(any_miniature, tmp_path / "drawn", seed=None)
    seed = drawn.events_of("started")[0]["seed"]
    with safe_open(drawn.output / "short.safetensors", "pt") as file:
        assert file.metadata()["ss_seed"] == str(seed)
    assert train(any_miniature, tmp_path / "again", seed=seed).losses == drawn.losses


def test_a_different_seed_gives_different_losses(plain: Run, any_miniature: Any, tmp_path: Path) -> None:
    assert train(any_miniature, tmp_path / "other", seed=2).losses != plain.losses


def test_flags_and_file_give_the_same_run(plain: Run, any_miniature: Any, tmp_path: Path) -> None:
    output = tmp_path / "by flags"
    given = {
        **settings_for(any_miniature),
        "train_data_dir": images(tmp_path / "images"),
        "output_dir": output,
        "run_dir": output / "run",
    }
    flags = [f"--{name}" if value is True else f"--{name}={value}" for name, value in given.items() if value]
    by_flags = run(flags, output, any_miniature.family)
    assert by_flags.losses == plain.losses
    assert equal(by_flags.tensors(), plain.tensors())


def test_workers_do_not_change_a_loss(any_miniature: Any, tmp_path: Path) -> None:
    decoded = {**CAPTIONS_IN_THE_STEP, "cache_latents": None, "flip_aug": True, "shuffle_caption": True}
    alone = train(any_miniature, tmp_path / "alone", **decoded)
    helped = train(any_miniature, tmp_path / "helped", max_data_loader_n_workers=2, **decoded)
    assert helped.status == alone.status == 0
    assert helped.losses == alone.losses


def test_weights_in_captions_and_all_of_150_tokens_count(miniature: Any, tmp_path: Path) -> None:
    root = images(tmp_path / "long", count=1)
    next(root.rglob("*.txt")).write_text("a (red:1.5) circle " * 40)
    ways: list[dict[str, Any]] = [{}, {"weighted_captions": True}, {"max_token_length": 150}]
    plain, weighted, long = (
        train(miniature, tmp_path / f"{number}", train_data_dir=root, max_train_steps=1, **way)
        for number, way in enumerate(ways)
    )
    assert long.status == weighted.status == 0
    assert weighted.losses != plain.losses
    assert long.losses != plain.losses


def test_nothing_grows_with_the_steps(any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gc

    from torch import Tensor

    from sd_scripts.training.trainer import Trainer

    alive: list[int] = []
    step = Trainer._step

    def counted(trainer: Trainer, batches: Any) -> None:
        step(trainer, batches)
        if trainer.train_state.progress.step % 4 == 0:  # at an epoch's end, when nothing is read ahead
            gc.collect()
            alive.append(sum(isinstance(each, Tensor) for each in gc.get_objects()))

    monkeypatch.setattr(Trainer, "_step", counted)
    train(any_miniature, tmp_path / "out", max_train_steps=16)
    assert alive[-1] <= alive[1]
