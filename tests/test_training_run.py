"""A run of the trainer from settings to file: what it tells, what it leaves behind, and that it repeats itself."""

import math
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from training_help import CAPTIONS_IN_THE_STEP, SHORT, Run, equal, pictures, run, train

from sd_scripts.options.toml_files import read_toml


@pytest.fixture(scope="module")
def plain(miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three steps without anything special. Do not write to it."""
    return train(miniature, tmp_path_factory.mktemp("plain") / "out")


def test_a_run_leaves_a_lora_and_nothing_else_beside_its_own_folder(plain: Run) -> None:
    assert plain.status == 0
    assert plain.files == ["short.safetensors"]
    assert any(tensor.any() for name, tensor in plain.tensors().items() if "lora_up" in name)


def test_whoever_may_read_the_folder_may_read_the_lora(plain: Run) -> None:
    (plain.output / "touched").touch()
    assert (plain.output / "short.safetensors").stat().st_mode == (plain.output / "touched").stat().st_mode
    (plain.output / "touched").unlink()


def test_every_step_is_told_once_in_order_with_a_finite_loss(plain: Run) -> None:
    assert plain.steps == [1, 2, 3]
    assert all(math.isfinite(loss) for loss in plain.losses)
    assert [event["lr"] for event in plain.told("step")] == [{"unet": 0.01}] * 3


def test_events_come_in_the_order_of_the_run(plain: Run) -> None:
    kinds = [event["kind"] for event in plain.events]
    assert kinds[0] == "phase"
    assert [kind for kind in kinds if kind != "phase"] == [
        "started", "step", "step", "epoch", "step", "epoch", "saved", "finished",
    ]  # fmt: skip
    (started,) = plain.told("started")
    assert (started["max_steps"], started["epochs"], started["batches_per_epoch"]) == (3, 2, 2)
    assert plain.told("finished")[0]["path"] == str(plain.output / "short.safetensors")


def test_the_settings_of_the_run_are_kept_in_its_folder(plain: Run) -> None:
    kept = read_toml(plain.folder.config)
    assert kept["network_dim"] == 2
    assert kept["learning_rate"] == 0.01
    assert "wandb_api_key" not in kept


def test_the_file_tells_how_far_it_was_trained(plain: Run) -> None:
    with safe_open(plain.output / "short.safetensors", "pt") as file:
        told = file.metadata()
    assert (told["ss_steps"], told["ss_seed"], told["ss_max_train_steps"]) == ("3", "1", "3")
    assert told["ss_network_module"] == "networks.lora"


def test_the_same_seed_gives_the_same_losses_and_the_same_tensors(plain: Run, miniature: Any, tmp_path: Path) -> None:
    again = train(miniature, tmp_path / "again", train_data_dir=pictures(plain.output.parent / "pictures"))
    assert again.losses == plain.losses
    assert equal(again.tensors(), plain.tensors())


def test_a_drawn_seed_is_noted_and_gives_the_run_again(miniature: Any, tmp_path: Path) -> None:
    drawn = train(miniature, tmp_path / "drawn", seed=None)
    seed = drawn.told("started")[0]["seed"]
    with safe_open(drawn.output / "short.safetensors", "pt") as file:
        assert file.metadata()["ss_seed"] == str(seed)
    assert train(miniature, tmp_path / "again", seed=seed).losses == drawn.losses


def test_another_seed_gives_other_losses(plain: Run, miniature: Any, tmp_path: Path) -> None:
    assert train(miniature, tmp_path / "other", seed=2).losses != plain.losses


def test_flags_give_the_run_that_the_file_gives(plain: Run, miniature: Any, tmp_path: Path) -> None:
    output = tmp_path / "by flags"
    given = {
        **SHORT,
        "pretrained_model_name_or_path": miniature.checkpoint,
        "train_data_dir": plain.output.parent / "pictures",
        "output_dir": output,
        "run_dir": output / "run",
    }
    flags = [f"--{name}" if value is True else f"--{name}={value}" for name, value in given.items() if value]
    by_flags = run(flags, output)
    assert by_flags.losses == plain.losses
    assert equal(by_flags.tensors(), plain.tensors())


def test_learning_lowers_the_loss(miniature: Any, tmp_path: Path) -> None:
    """Beside a run that sees the same pictures, noise and timesteps and does not learn."""
    longer = {"max_train_steps": 30, "network_dim": 8, "network_alpha": 8.0}
    learning = train(miniature, tmp_path / "learning", learning_rate=3e-3, **longer).losses
    standing = train(miniature, tmp_path / "standing", learning_rate=1e-12, **longer).losses
    assert sum(learning[10:]) < 0.98 * sum(standing[10:])


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_do_not_change_a_loss(workers: int, miniature: Any, tmp_path: Path) -> None:
    decoded = {**CAPTIONS_IN_THE_STEP, "cache_latents": None, "flip_aug": True, "shuffle_caption": True}
    alone = train(miniature, tmp_path / "alone", **decoded)
    helped = train(miniature, tmp_path / "helped", max_data_loader_n_workers=workers, **decoded)
    assert helped.status == alone.status == 0
    assert helped.losses == alone.losses


def test_cached_latents_give_the_losses_of_pictures(plain: Run, miniature: Any, tmp_path: Path) -> None:
    assert train(miniature, tmp_path / "out", cache_latents=None).losses == pytest.approx(plain.losses, rel=1e-5)


def test_cached_captions_give_the_losses_of_captions(plain: Run, miniature: Any, tmp_path: Path) -> None:
    assert train(miniature, tmp_path / "out", **CAPTIONS_IN_THE_STEP).losses == pytest.approx(plain.losses, rel=1e-5)


def test_caches_on_disk_are_read_by_the_second_run(plain: Run, miniature: Any, tmp_path: Path) -> None:
    cached = {"cache_latents_to_disk": True, "cache_text_encoder_outputs_to_disk": True}
    first = train(miniature, tmp_path / "first", **cached)
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "pictures").rglob("*.npz")}
    second = train(miniature, tmp_path / "second", **cached)
    assert len(made) == 4
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "pictures").rglob("*.npz")} == made
    assert second.losses == first.losses == pytest.approx(plain.losses, rel=1e-5)


def test_weights_in_captions_count(miniature: Any, tmp_path: Path) -> None:
    root = pictures(tmp_path / "weighted", count=1)
    next(root.rglob("*.txt")).write_text("a (red:1.5) circle")
    with_weights, without = (
        train(miniature, tmp_path / f"{weighted}", train_data_dir=root, max_train_steps=1, weighted_captions=weighted)
        for weighted in (True, False)
    )
    assert with_weights.losses != without.losses


def test_long_captions_train_with_150_tokens(miniature: Any, tmp_path: Path) -> None:
    root = pictures(tmp_path / "long", count=1)
    next(root.rglob("*.txt")).write_text("a red circle " * 40)
    long, short = (
        train(miniature, tmp_path / f"{length}", train_data_dir=root, max_train_steps=1, max_token_length=length)
        for length in (150, None)
    )
    assert long.status == 0
    assert long.losses != short.losses


def test_pictures_of_two_sizes_share_a_run(miniature: Any, tmp_path: Path) -> None:
    from data_help import make_folder

    make_folder(tmp_path / "mixed" / "1_both", [(64, 64), (64, 64), (128, 64)])
    mixed = train(miniature, tmp_path / "out", train_data_dir=tmp_path / "mixed", train_batch_size=2)
    assert mixed.status == 0
    assert len(mixed.told("started")[0]["shapes"]) == 2


def test_nothing_grows_with_the_steps(miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gc

    from torch import Tensor

    from sd_scripts.training.trainer import Trainer

    alive: list[int] = []
    step = Trainer._step

    def counted(trainer: Trainer, batches: Any) -> None:
        step(trainer, batches)
        if trainer.trained.progress.step % 4 == 0:  # at an epoch's end, when nothing is read ahead
            gc.collect()
            alive.append(sum(isinstance(each, Tensor) for each in gc.get_objects()))

    monkeypatch.setattr(Trainer, "_step", counted)
    train(miniature, tmp_path / "out", max_train_steps=16)
    assert alive[-1] <= alive[1]
