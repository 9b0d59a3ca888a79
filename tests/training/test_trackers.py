"""TensorBoard and wandb as listeners of a run."""

import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.formats.secrets import HANDED
from tests.support.training import train

pytestmark = pytest.mark.run


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard reads from its folder: steps and values by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def test_tensorboard_shows_losses_and_rates(any_miniature: Any, tmp_path: Path) -> None:
    made = train(any_miniature, tmp_path / "out", logging_dir=tmp_path / "logs", log_prefix="mine_")
    (run,) = (tmp_path / "logs").iterdir()
    assert run.name.startswith("mine_20")
    shown = scalars(run / "network_train")
    assert [step for step, _ in shown["loss/current"]] == [1, 2, 3]
    assert [value for _, value in shown["loss/current"]] == pytest.approx(made.losses)
    assert [value for _, value in shown["lr/unet"]] == pytest.approx([0.01] * 3)


def test_the_settings_are_logged_on_request_and_secrets_never(
    any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in HANDED:  # in which the run hands them over; restored afterwards
        monkeypatch.setenv(variable, "")
    train(
        any_miniature, tmp_path / "out", logging_dir=tmp_path / "logs", log_tracker_name="cats", log_config=True,
        max_train_steps=1, wandb_api_key="very-secret", huggingface_token="secret-too",
    )  # fmt: skip
    (told,) = (tmp_path / "logs").rglob("hparams.yml")
    assert told.parent.parent.name == "cats"
    assert "learning_rate: 0.01" in told.read_text()
    everything = b"".join(path.read_bytes() for path in (tmp_path / "logs").rglob("*") if path.is_file())
    everything += b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert b"secret" not in everything


def test_without_a_folder_nothing_is_written(any_miniature: Any, tmp_path: Path) -> None:
    made = train(any_miniature, tmp_path / "out", max_train_steps=1)
    assert made.files == ["short.safetensors"]
    assert not list(tmp_path.rglob("*tfevents*"))


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_writes_into_the_run_folder_when_offline(
    any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = tmp_path / "tracker.toml"
    config.write_text('[wandb]\ntags = ["tried"]\n')
    made = train(
        any_miniature, tmp_path / "out", log_with="wandb", wandb_run_name="by hand", log_tracker_config=config,
        max_train_steps=1,
    )  # fmt: skip
    assert made.status == 0
    (written,) = (made.folder.path / "wandb").rglob("*.wandb")
    end = time.monotonic() + 300
    while b"by hand" not in written.read_bytes() and time.monotonic() < end:  # wandb's own process writes it
        time.sleep(0.1)
    assert b"by hand" in written.read_bytes()
    assert b"tried" in written.read_bytes()


def test_events_stay_plain_numbers_next_to_trackers(any_miniature: Any, tmp_path: Path) -> None:
    made = train(any_miniature, tmp_path / "out", logging_dir=tmp_path / "logs", optimizer_type="Adafactor")
    lines = (made.folder.path / "events.jsonl").read_text().splitlines()
    assert all(json.loads(line) for line in lines)
