"""Files and states of a run, and that a resumed run goes on bit for bit, with every optimizer and schedule."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from training_help import Run, equal, pictures, train

STATES = {"save_state": True, "max_train_steps": 8, "save_every_n_steps": 1, "network_args": ["rank_dropout=0.3"]}
"""A state after each of eight steps; epochs have three, and LoRA's dropout draws in each."""


@pytest.fixture(scope="module")
def undisturbed(miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Do not write to it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return train(miniature, folder / "out", train_data_dir=pictures(folder / "pictures", count=3), **STATES)


def state_of(run: Run, step: int) -> Path:
    return run.output / f"short-step{step:08d}-state"


def go_on(miniature: Any, output: Path, state: Path, **values: Any) -> Run:
    """With the settings and pictures of `undisturbed`."""
    root = state.parent.parent / "pictures"
    return train(miniature, output, **{**STATES, "train_data_dir": root, "resume": state, **values})


def test_resuming_twice_in_a_row_is_still_the_undisturbed_run(undisturbed: Run, miniature: Any, tmp_path: Path) -> None:
    shutil.copytree(undisturbed.output.parent / "pictures", tmp_path / "pictures")
    first = go_on(miniature, tmp_path / "first", state_of(undisturbed, 2), max_train_steps=5)
    assert first.losses == undisturbed.losses[2:5]
    second = go_on(miniature, tmp_path / "second", tmp_path / "first" / "short-state")
    assert second.losses == undisturbed.losses[5:]
    assert equal(second.tensors(), undisturbed.tensors())


@pytest.mark.parametrize("optimizer", ["AdamW8bit", "Prodigy", "Lion", "Adafactor", "AdamWScheduleFree"])
def test_every_optimizer_resumes_exactly(optimizer: str, miniature: Any, tmp_path: Path) -> None:
    options = {
        "optimizer_type": optimizer,
        "learning_rate": 1.0 if optimizer == "Prodigy" else 1e-3,
        "save_state": True,
        "max_train_steps": 4,
    }
    whole = train(miniature, tmp_path / "whole", save_every_n_steps=2, **options)
    rest = train(miniature, tmp_path / "rest", save_every_n_steps=2, resume=state_of(whole, 2), **options)
    assert rest.status == 0
    assert rest.losses == whole.losses[2:]
    assert equal(rest.tensors(), whole.tensors())


def test_a_schedule_goes_on_where_it_was(miniature: Any, tmp_path: Path) -> None:
    options = {"lr_scheduler": "cosine", "lr_warmup_steps": 2, "save_state": True, "max_train_steps": 6}
    whole = train(miniature, tmp_path / "whole", save_every_n_steps=3, **options)
    rest = train(miniature, tmp_path / "rest", resume=state_of(whole, 3), **options)
    assert [e["lr"] for e in rest.told("step")] == [e["lr"] for e in whole.told("step")][3:]
    assert equal(rest.tensors(), whole.tensors())


def test_accumulation_resumes_at_a_step_and_not_within_one(miniature: Any, tmp_path: Path) -> None:
    options = {"gradient_accumulation_steps": 2, "save_state": True, "max_train_steps": 4}
    root = pictures(tmp_path / "pictures", count=3)  # an epoch is a whole step and one of a single batch
    whole = train(miniature, tmp_path / "whole", train_data_dir=root, save_every_n_steps=1, **options)
    rest = train(miniature, tmp_path / "rest", train_data_dir=root, resume=state_of(whole, 1), **options)
    assert [event["epoch"] for event in whole.told("step")] == [1, 1, 2, 2]
    assert rest.losses == whole.losses[1:]
    assert equal(rest.tensors(), whole.tensors())


def test_a_state_of_another_seed_keeps_its_own(undisturbed: Run, miniature: Any, tmp_path: Path) -> None:
    again = go_on(miniature, tmp_path / "out", state_of(undisturbed, 7), seed=2)
    assert again.losses == undisturbed.losses[7:]
    assert any("seed" in warning["text"] for warning in again.told("warning"))


def test_another_batch_size_begins_the_epoch_anew(undisturbed: Run, miniature: Any, tmp_path: Path) -> None:
    again = go_on(miniature, tmp_path / "out", state_of(undisturbed, 4), train_batch_size=3)
    assert again.status == 0
    assert again.steps == [5, 6, 7, 8]
    assert any("begins anew" in warning["text"] for warning in again.told("warning"))


def refused(miniature: Any, run: Run, capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence of a run that was refused before its first step."""
    assert run.status == 2
    assert run.steps == []
    told = capsys.readouterr().err
    assert "Traceback" not in told
    (failed,) = run.told("failed")
    assert failed["error"] in told
    return str(failed["error"])


def test_what_cannot_be_resumed_is_told_in_one_sentence(
    undisturbed: Run, miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = state_of(undisturbed, 2)

    def sentence(name: str, **values: Any) -> str:
        return refused(miniature, go_on(miniature, tmp_path / name, state, **values), capsys)

    assert "no folder" in sentence("absent", resume=tmp_path / "nowhere")
    assert "not a state of this program" in sentence("other", resume=undisturbed.output)
    assert "network_dim" in sentence("rank", network_dim=4)
    assert "another optimizer_type" in sentence("optimizer", optimizer_type="Lion")
    assert "raise max_train_steps" in sentence("over", max_train_steps=2)


def test_half_a_state_is_told_in_one_sentence(
    undisturbed: Run, miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(undisturbed.output.parent / "pictures", tmp_path / "pictures")
    half = shutil.copytree(state_of(undisturbed, 2), tmp_path / "out" / "half-state")
    (half / "state.pt").write_bytes((half / "state.pt").read_bytes()[:1000])
    run = train(miniature, tmp_path / "out", **STATES, resume=half)
    assert "cannot be read" in refused(miniature, run, capsys)


def test_a_state_holds_tensors_and_numbers_only(undisturbed: Run) -> None:
    folder = state_of(undisturbed, 4)
    assert torch.load(folder / "state.pt", weights_only=True).keys() == {"learning", "optimizer", "scheduler", "scaler"}
    facts = json.loads((folder / "progress.json").read_text())
    assert (facts["step"], facts["epoch"], facts["batch"], facts["seed"]) == (4, 2, 1, 1)


def test_names_and_window_of_files_saved_by_steps(miniature: Any, tmp_path: Path) -> None:
    made = train(
        miniature, tmp_path / "out", max_train_steps=8, save_every_n_steps=2, save_last_n_steps=2, save_state=True,
        save_last_n_steps_state=4,
    )  # fmt: skip
    assert made.files == [
        "short-state", "short-step00000002-state", "short-step00000004-state", "short-step00000004.safetensors",
        "short-step00000006-state", "short-step00000006.safetensors", "short.safetensors",
    ]  # fmt: skip


def test_names_and_window_of_files_saved_by_epochs(miniature: Any, tmp_path: Path) -> None:
    made = train(
        miniature, tmp_path / "out", max_train_epochs=5, save_every_n_epochs=1, save_last_n_epochs=2,
        save_state_on_train_end=True,
    )  # fmt: skip
    assert made.steps == list(range(1, 11))
    assert made.files == ["short-000003.safetensors", "short-000004.safetensors", "short-state", "short.safetensors"]


def test_a_number_of_saves_is_spread_over_the_epochs(miniature: Any, tmp_path: Path) -> None:
    made = train(miniature, tmp_path / "out", max_train_epochs=4, save_n_epoch_ratio=2)
    assert made.files == ["short-000002.safetensors", "short.safetensors"]


def test_files_without_a_name_and_in_half_precision(miniature: Any, tmp_path: Path) -> None:
    made = train(
        miniature, tmp_path / "out", output_name=None, save_precision="fp16", save_every_n_epochs=1,
        save_every_n_steps=1, max_train_epochs=2,
    )  # fmt: skip
    assert made.files == [
        "at-step00000001.safetensors", "at-step00000002.safetensors", "at-step00000003.safetensors",
        "epoch-000001.safetensors", "last.safetensors",
    ]  # fmt: skip
    assert {tensor.dtype for tensor in made.tensors("last.safetensors").values()} == {torch.float16}


def test_initial_step_begins_where_it_says(undisturbed: Run, miniature: Any, tmp_path: Path) -> None:
    data = {"train_data_dir": undisturbed.output.parent / "pictures", "max_train_steps": 8}
    skipping = train(miniature, tmp_path / "skipping", initial_step=5, skip_until_initial_step=True, **data)
    assert skipping.steps == [6, 7, 8]
    assert [event["epoch"] for event in skipping.told("step")] == [2, 3, 3]
    again = train(miniature, tmp_path / "again", initial_epoch=2, **data)
    assert again.steps == [4, 5, 6, 7, 8]
    assert [event["epoch"] for event in again.told("step")] == [2, 2, 2, 3, 3]
