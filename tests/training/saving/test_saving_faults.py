"""Faults outside the weights do not end a run, and any fault that does saves the trained weights first."""

import contextlib
import errno
import hashlib
import importlib.metadata
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch

from sd_scripts.formats.disk import NotWritten, errno_of, format_bytes
from sd_scripts.library.files import safetensors_io, ss_metadata
from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.training import ResumeOptions
from sd_scripts.planning.steps import TrainPlan
from sd_scripts.runs.folder import RunFolder
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.preflight import problems
from sd_scripts.settings.settings import Settings
from sd_scripts.training.saving import rescue
from sd_scripts.training.saving.dry_save import kept_files
from sd_scripts.training.saving.writer import Failure
from tests.support.faults import during, file_system
from tests.support.training import SHORT, Run, equal, images, train, train_whole

pytestmark = pytest.mark.run

__all__ = ["during"]


def warnings(made: Run, about: str) -> list[str]:
    return [event["text"] for event in made.events_of("warning") if about in event["text"]]


def test_unreadable_commands_are_reported_once_and_do_not_end_the_run(any_miniature: Any, tmp_path: Path) -> None:
    (tmp_path / "out/run/commands.jsonl").mkdir(parents=True)  # reading it is an error, as on a drive that is away
    made = train(any_miniature, tmp_path / "out")
    assert made.status == 0
    assert len(warnings(made, "commands.jsonl' cannot be read")) == 1


def test_a_deleted_logging_dir_is_reported_once_and_does_not_end_the_run(
    during: Any, any_miniature: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "logs"
    during(2, lambda: (shutil.rmtree(logs), logs.write_text("in the way")))
    made = train(any_miniature, tmp_path / "out", logging_dir=logs, max_train_steps=8)
    assert made.status == 0
    assert made.steps == list(range(1, 9))
    assert len(warnings(made, "logging_dir: tensorboard accepts no values")) == 1
    assert "Traceback" not in capfd.readouterr().err


def test_files_are_saved_without_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", not_installed)
    ss_metadata._version.cache_clear()
    assert ss_metadata._version() == "sd-scripts-studio"
    ss_metadata._version.cache_clear()


def test_a_thumbnail_is_read_before_the_first_step(during: Any, any_miniature: Any, tmp_path: Path) -> None:
    image = next(images(tmp_path / "images").rglob("*.png"))
    thumbnail = shutil.copy(image, tmp_path / "thumbnail.png")
    during(1, Path(thumbnail).unlink)
    made = train(any_miniature, tmp_path / "out", metadata_thumbnail=thumbnail, max_train_steps=1)
    assert made.status == 0
    with safetensors.safe_open(made.output / "short.safetensors", "pt") as file:
        assert file.metadata()["modelspec.thumbnail"].startswith("data:image/png;base64,")


def test_an_obstacle_to_the_last_file_is_reported_before_anything_is_loaded(miniature: Any, tmp_path: Path) -> None:
    (tmp_path / "short.safetensors").mkdir()
    (tmp_path / "logs").touch()
    values = {**SHORT, **miniature.files, "train_data_dir": str(images(tmp_path / "images"))}
    values |= {"output_dir": str(tmp_path), "logging_dir": str(tmp_path / "logs"), "metadata_thumbnail": "no.png"}
    values = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
    told = [str(problem) for problem in problems(Settings(script_for("sdxl", "lora"), values))]
    assert sorted(line.partition(":")[0] for line in told) == ["logging_dir", "metadata_thumbnail", "output_name"]


@pytest.mark.parametrize("steps", [1, 4])
def test_the_base_model_is_hashed_once_the_run_trains(during: Any, miniature: Any, tmp_path: Path, steps: int) -> None:
    shutil.copytree(miniature.checkpoint.parent, tmp_path / "model")  # with the tokenizer
    base = tmp_path / "model" / miniature.checkpoint.name

    def change() -> None:
        with base.open("ab") as file:
            file.write(b"changed")

    during(1, change)
    made = train(miniature, tmp_path / "out", pretrained_model_name_or_path=base, max_train_steps=steps)
    assert made.status == 0
    with safetensors.safe_open(made.output / "short.safetensors", "pt") as file:
        assert file.metadata()["ss_new_sd_model_hash"] == hashlib.sha256(base.read_bytes()).hexdigest()


def break_hashing(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on SHA-256 fails where a LoRA's hashes are made."""

    def fail(*of: Any) -> bytes:
        raise ValueError("unsupported hash type sha256")

    monkeypatch.setattr(safetensors_io, "hashlib", SimpleNamespace(sha256=fail))


def test_weights_are_written_as_plain_tensors_where_nothing_else_works(
    during: Any, any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    during(2, lambda: break_hashing(monkeypatch))
    made = train(any_miniature, tmp_path / "out")
    assert made.status == 0
    assert made.files == ["short-weights.pt"]
    assert torch.load(made.output / "short-weights.pt", weights_only=True)["masters"].isfinite().all()
    assert len(warnings(made, "simpler form")) == 1


def test_a_save_that_cannot_work_is_reported_before_the_first_step(
    any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_hashing(monkeypatch)
    made = train(any_miniature, tmp_path / "out")
    assert made.status != 0
    assert made.steps == []
    assert made.files == []


def fail() -> None:
    raise RuntimeError("something that nobody foresaw")


def test_an_error_in_a_step_saves_the_last_complete_one_first(during: Any, any_miniature: Any, tmp_path: Path) -> None:
    values = {"max_train_steps": 4, "train_data_dir": images(tmp_path / "images", count=3)}
    whole = train(any_miniature, tmp_path / "whole", **values)
    during(2, fail)
    broken = train(any_miniature, tmp_path / "out", **values)
    assert broken.status == 1
    state = broken.output / "short-step00000002-state"
    assert broken.files == [state.name, "short-step00000002.safetensors"]
    (failed,) = broken.events_of("failed")
    assert f"'{state}'; set resume = latest" in failed["remedy"]
    during(2, lambda: None)
    rest = train(any_miniature, broken.output, resume="latest", **values)
    assert rest.status == 0
    assert equal(rest.tensors(), whole.tensors())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB."""
    with file_system(tmp_path / "disk", "3m") as place:
        yield place


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.parametrize("freed", [False, True], ids=["stays full", "is freed"])
def test_a_full_disk_at_the_end_loses_nothing(
    freed: bool, disk: Path, during: Any, any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescue, "WAIT", 60.0 if freed else 1.0)
    monkeypatch.setattr(rescue, "AGAIN_EVERY", 0.2)
    output, run_dir = disk / "out", tmp_path / "run"
    elsewhere = run_dir / rescue.RESCUED / "short.safetensors"
    during(2, lambda: fill(disk))
    helper = threading.Thread(target=free_once_rescued, args=(elsewhere, disk / "filler"))
    if freed:
        helper.start()
    values = {"train_data_dir": images(tmp_path / "data"), "run_dir": run_dir}
    made = replace(train(any_miniature, output, **values), folder=RunFolder(run_dir))
    assert made.status == 0
    lies = output / "short.safetensors" if freed else elsewhere
    assert made.events_of("finished")[0]["path"] == str(lies)
    assert safetensors.torch.load_file(lies)
    assert len(warnings(made, "the disk is full; free some space. The run tries again for")) == 1
    if freed:
        helper.join()
        assert not elsewhere.parent.exists()
    else:
        assert warnings(made, f"It is in '{elsewhere.parent}' instead")


def free_once_rescued(rescued: Path, filler: Path) -> None:
    event = threading.Event()
    while not rescued.exists() and not event.wait(0.1):
        pass
    filler.unlink()


def test_a_model_too_large_for_the_disk_is_not_trained(disk: Path, miniature: Any, tmp_path: Path) -> None:
    (disk / "filler").write_bytes(bytes(3_100_000))  # 45 kB are left
    values = {"train_data_dir": images(tmp_path / "data"), "run_dir": tmp_path / "run"}
    for begin, why in ((train, "failed a trial save"), (train_whole, "and the file at the end takes")):
        made = begin(miniature, disk / "out", **values)
        assert made.status == 2
        assert made.files == []
        assert why in list(RunFolder(tmp_path / "run").events())[-1]["error"]


def test_the_files_a_run_keeps_are_counted() -> None:
    train_plan = TrainPlan(batches_per_epoch=10, accumulation=1, max_steps=100)

    def kept(step: int = 0, **values: Any) -> tuple[int, int]:
        settings = Settings(script_for("sdxl", "lora"), values)
        return kept_files(settings[SavingOptions], settings[ResumeOptions], train_plan, step)

    assert kept() == (1, 0)
    assert kept(save_every_n_steps=10) == (10, 0)
    assert kept(60, save_every_n_steps=10, save_state=True) == (4, 4)
    assert kept(save_every_n_steps=10, save_last_n_steps=20, save_state=True) == (4, 4)
    assert kept(save_every_n_epochs=2, save_state_on_train_end=True) == (5, 1)
    assert kept(save_n_epoch_ratio=2) == (2, 0)


def test_errors_name_the_reason_and_sizes_are_readable(tmp_path: Path) -> None:
    full = NotWritten("x", OSError(errno.ENOSPC, "No space left on device"))
    assert str(full) == "'x' could not be written: the disk is full; free some space"
    assert errno_of(full) == errno.ENOSPC
    assert errno_of(RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0")) == errno.ENOSPC
    assert errno_of(RuntimeError("CUDA error: out of memory")) is None
    assert [format_bytes(size) for size in (999, 1500, 25_000_000, 6_900_000_000)] == [
        "999 B",
        "1.5 kB",
        "25 MB",
        "6.9 GB",
    ]
    failures = [Failure("", errno.ENOSPC)]
    assert rescue.may_pass(failures)
    assert not rescue.may_pass([Failure("", errno.EACCES)])
    assert next(rescue.fallback_folders(tmp_path, tmp_path, failures)) == Path.home() / rescue.RESCUED / tmp_path.name
    assert next(rescue.fallback_folders(tmp_path, tmp_path, [])) == tmp_path / rescue.RESCUED
