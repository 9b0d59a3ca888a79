"""Files and states of a run, and that a resumed run continues bit for bit, with every optimizer and schedule."""

import hashlib
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from sd_scripts.library.optim.optimizers import make_optimizer
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.runs.folder import RunFolder
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings
from sd_scripts.training.saving.origin import changed_models, changes, model_origin_of, origin_of
from sd_scripts.training.saving.recovery import clean_up, newest_state
from sd_scripts.training.saving.train_state import CHECKSUM, read_saved, read_whole
from tests.support.data import plan_data
from tests.support.training import Run, equal, images, settings_for, train, train_whole

pytestmark = pytest.mark.run

STATES = {"save_state": True, "max_train_steps": 8, "save_every_n_steps": 1, "network_args": ["rank_dropout=0.3"]}
"""A state after each of eight steps; epochs have three, and LoRA's dropout draws in each."""


@pytest.fixture(scope="module")
def undisturbed(any_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Do not write to it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return train(any_miniature, folder / "out", train_data_dir=images(folder / "images", count=3), **STATES)


def state_of(run: Run, step: int) -> Path:
    return run.output / f"short-step{step:08d}-state"


def rewrite_progress(state: Path, **changes: Any) -> None:
    """With a checksum that matches."""
    file = state / "progress.json"
    summary = {name: value for name, value in json.loads(file.read_text()).items() if name != "sha256"} | changes
    checksum = hashlib.sha256(json.dumps(summary).encode()).hexdigest()
    file.write_text(json.dumps({**summary, "sha256": checksum}))


def go_on(model: Any, output: Path, state: Path, **values: Any) -> Run:
    """With the settings and images of `undisturbed`."""
    root = state.parent.parent / "images"
    return train(model, output, **{**STATES, "train_data_dir": root, "resume": state, **values})


def test_a_run_resumed_repeatedly_equals_an_uninterrupted_one(
    undisturbed: Run, any_miniature: Any, tmp_path: Path
) -> None:
    """In the middle of an epoch, at its end, and just after."""
    shutil.copytree(undisturbed.output.parent / "images", tmp_path / "images")
    begin, state = 2, state_of(undisturbed, 2)
    for end in (3, 4, 8):
        run = go_on(any_miniature, tmp_path / f"until{end}", state, max_train_steps=end)
        assert run.steps == list(range(begin + 1, end + 1))
        assert run.losses == undisturbed.losses[begin:end]
        assert [event["epoch"] for event in run.events_of("step")] == [(step - 1) // 3 + 1 for step in run.steps]
        begin, state = end, run.output / "short-state"
    assert equal(run.tensors(), undisturbed.tensors())


@pytest.mark.parametrize("name", ["AdamW8bit", "DAdaptAdam", "Lion", "Adafactor"])
def test_every_optimizer_resumes_exactly_from_its_state(name: str, tmp_path: Path) -> None:
    """As runs save and load it; two whole runs are below, with optimizers that keep most."""

    def made() -> tuple[torch.nn.Parameter, Any]:
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 80 * 64).view(80, 64))  # few values are not kept in 8 bits
        options = OptimizerOptions(optimizer_type=name, learning_rate=1.0 if name == "DAdaptAdam" else 1e-3)
        return weight, make_optimizer(options, [{"params": [weight]}])

    def step(weight: torch.nn.Parameter, optimizer: Any, number: int) -> None:
        weight.grad = (weight.detach() * number).cos()
        optimizer.step()

    weight, whole = made()
    step(weight, whole, 1)
    step(weight, whole, 2)
    torch.save(whole.state_dict(), tmp_path / "state.pt")
    again, rest = made()
    again.data.copy_(weight)
    rest.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    before = weight.detach().clone()
    step(weight, whole, 3)
    step(again, rest, 3)
    assert not torch.equal(weight, before)
    assert torch.equal(again, weight)


@pytest.mark.parametrize("optimizer", ["Prodigy", "AdamWScheduleFree"])
def test_a_run_with_a_custom_optimizer_resumes_exactly(optimizer: str, any_miniature: Any, tmp_path: Path) -> None:
    options = {
        "optimizer_type": optimizer,
        "learning_rate": 1.0 if optimizer == "Prodigy" else 1e-3,
        "save_state": True,
        "max_train_steps": 3,
    }
    whole = train(any_miniature, tmp_path / "whole", save_every_n_steps=2, **options)
    rest = train(any_miniature, tmp_path / "rest", save_every_n_steps=2, resume=state_of(whole, 2), **options)
    assert rest.status == 0
    assert rest.losses == whole.losses[2:]
    assert equal(rest.tensors(), whole.tensors())


def test_a_run_of_bitsandbytes_is_resumed_by_our_adamw_8bit_exactly_as_its_own(
    any_miniature: Any, tmp_path: Path
) -> None:
    options = {"network_dim": 128, "learning_rate": 1e-3, "save_state": True, "max_train_steps": 4}
    ours, theirs = {"optimizer_type": "AdamW8bit"}, {"optimizer_type": "bitsandbytes.optim.AdamW8bit"}
    first = train(any_miniature, tmp_path / "first", save_every_n_steps=2, **options, **theirs)
    rest = train(any_miniature, tmp_path / "rest", save_every_n_steps=3, resume=state_of(first, 2), **options, **ours)
    assert rest.losses[0] == first.losses[2], "the loss before the first update"
    assert rest.losses[1] == pytest.approx(first.losses[3], rel=1e-3)
    own = train(any_miniature, tmp_path / "own", resume=state_of(rest, 3), **options, **ours)
    assert own.losses == rest.losses[1:]
    assert equal(own.tensors(), rest.tensors())


def test_a_schedule_continues_where_it_was(any_miniature: Any, tmp_path: Path) -> None:
    options = {"lr_scheduler": "cosine", "lr_warmup_steps": 2, "save_state": True, "max_train_steps": 6}
    whole = train(any_miniature, tmp_path / "whole", save_every_n_steps=3, **options)
    rest = train(any_miniature, tmp_path / "rest", resume=state_of(whole, 3), **options)
    assert [e["lr"] for e in rest.events_of("step")] == [e["lr"] for e in whole.events_of("step")][3:]
    assert equal(rest.tensors(), whole.tensors())


def test_accumulation_resumes_at_a_step_and_not_within_one(any_miniature: Any, tmp_path: Path) -> None:
    options = {"gradient_accumulation_steps": 2, "save_state": True, "max_train_steps": 4}
    root = images(tmp_path / "images", count=3)  # an epoch is a whole step and one of a single batch
    whole = train(any_miniature, tmp_path / "whole", train_data_dir=root, save_every_n_steps=1, **options)
    rest = train(any_miniature, tmp_path / "rest", train_data_dir=root, resume=state_of(whole, 1), **options)
    assert [event["epoch"] for event in whole.events_of("step")] == [1, 1, 2, 2]
    assert rest.losses == whole.losses[1:]
    assert equal(rest.tensors(), whole.tensors())


def test_a_state_with_a_different_seed_keeps_its_own(undisturbed: Run, any_miniature: Any, tmp_path: Path) -> None:
    again = go_on(any_miniature, tmp_path / "out", state_of(undisturbed, 7), seed=2)
    assert again.losses == undisturbed.losses[7:]
    assert any("seed" in warning["text"] for warning in again.events_of("warning"))


def test_a_different_batch_size_restarts_the_epoch(undisturbed: Run, any_miniature: Any, tmp_path: Path) -> None:
    again = go_on(any_miniature, tmp_path / "out", state_of(undisturbed, 4), train_batch_size=3)
    assert again.status == 0
    assert again.steps == [5, 6, 7, 8]
    assert any("restarts from its first batch" in warning["text"] for warning in again.events_of("warning"))


def refused(model: Any, run: Run, capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence of a run that was refused before its first step."""
    assert run.status == 2
    assert run.steps == []
    told = capsys.readouterr().err
    assert "Traceback" not in told
    (failed,) = run.events_of("failed")
    assert failed["error"] in told
    return str(failed["error"])


def test_a_state_that_cannot_be_resumed_is_reported_in_one_sentence(
    undisturbed: Run, any_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = state_of(undisturbed, 2)

    def sentence(name: str, **values: Any) -> str:
        return refused(any_miniature, go_on(any_miniature, tmp_path / name, state, **values), capsys)

    absent = go_on(any_miniature, tmp_path / "absent", state, resume=tmp_path / "nowhere")
    assert (absent.status, absent.events) == (2, [])  # no run was begun
    assert "resume: folder not found" in capsys.readouterr().err
    assert "not a state of this program" in sentence("other", resume=undisturbed.output)
    assert "network_dim" in sentence("rank", network_dim=4)
    assert "a different optimizer_type" in sentence("optimizer", optimizer_type="Lion")
    assert "raise max_train_steps" in sentence("over", max_train_steps=2)


def test_half_a_state_is_reported_in_one_sentence(
    undisturbed: Run, any_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(undisturbed.output.parent / "images", tmp_path / "images")
    half = shutil.copytree(state_of(undisturbed, 2), tmp_path / "out" / "half-state")
    (half / "state.pt").write_bytes((half / "state.pt").read_bytes()[:1000])
    run = train(any_miniature, tmp_path / "out", **STATES, resume=half)
    assert "the checksum of state.pt does not match" in refused(any_miniature, run, capsys)
    assert "caching" not in " ".join(event["name"] for event in run.events_of("phase"))


def test_a_state_contains_only_tensors_and_numbers(undisturbed: Run) -> None:
    folder = state_of(undisturbed, 4)
    assert torch.load(folder / "state.pt", weights_only=True).keys() == {"learning", "optimizer", "scheduler", "scaler"}
    facts = json.loads((folder / "progress.json").read_text())
    assert (facts["step"], facts["epoch"], facts["batch"], facts["seed"]) == (4, 2, 1, 1)


def test_names_and_window_of_files_saved_by_steps(any_miniature: Any, tmp_path: Path) -> None:
    made = train(
        any_miniature, tmp_path / "out", max_train_steps=8, save_every_n_steps=2, save_last_n_steps=2, save_state=True,
        save_last_n_steps_state=4,
    )  # fmt: skip
    assert made.files == [
        "short-state", "short-step00000002-state", "short-step00000004-state", "short-step00000004.safetensors",
        "short-step00000006-state", "short-step00000006.safetensors", "short.safetensors",
    ]  # fmt: skip


def test_names_and_window_of_files_saved_by_epochs(any_miniature: Any, tmp_path: Path) -> None:
    made = train(
        any_miniature, tmp_path / "out", max_train_epochs=5, save_every_n_epochs=1, save_last_n_epochs=2,
        save_state_on_train_end=True,
    )  # fmt: skip
    assert made.steps == list(range(1, 11))
    assert made.files == ["short-000003.safetensors", "short-000004.safetensors", "short-state", "short.safetensors"]


def test_a_number_of_saves_is_spread_over_the_epochs(any_miniature: Any, tmp_path: Path) -> None:
    made = train(any_miniature, tmp_path / "out", max_train_epochs=4, save_n_epoch_ratio=2)
    assert made.files == ["short-000002.safetensors", "short.safetensors"]


def test_files_without_a_name_and_in_half_precision(any_miniature: Any, tmp_path: Path) -> None:
    made = train(
        any_miniature, tmp_path / "out", output_name=None, save_precision="fp16", save_every_n_epochs=1,
        save_every_n_steps=1, max_train_epochs=2,
    )  # fmt: skip
    assert made.files == [
        "at-step00000001.safetensors", "at-step00000002.safetensors", "at-step00000003.safetensors",
        "epoch-000001.safetensors", "last.safetensors",
    ]  # fmt: skip
    assert {tensor.dtype for tensor in made.tensors("last.safetensors").values()} == {torch.float16}


def test_initial_step_sets_the_first_step(undisturbed: Run, any_miniature: Any, tmp_path: Path) -> None:
    data = {"train_data_dir": undisturbed.output.parent / "images", "max_train_steps": 8}
    skipping = train(any_miniature, tmp_path / "skipping", initial_step=5, skip_until_initial_step=True, **data)
    assert skipping.steps == [6, 7, 8]
    assert [event["epoch"] for event in skipping.events_of("step")] == [2, 3, 3]
    again = train(any_miniature, tmp_path / "again", initial_epoch=2, **data)
    assert again.steps == [4, 5, 6, 7, 8]
    assert [event["epoch"] for event in again.events_of("step")] == [2, 2, 2, 3, 3]


def warnings_of(run: Run) -> list[str]:
    return [event["text"] for event in run.events_of("warning")]


def optimizer_in(state: Path) -> Any:
    return torch.load(state / "state.pt", weights_only=True)["optimizer"]


def test_a_new_rate_schedule_and_weight_decay_apply_and_are_reported(
    undisturbed: Run, any_miniature: Any, tmp_path: Path
) -> None:
    new = {"learning_rate": 1e-3, "lr_scheduler": "linear", "optimizer_args": ["weight_decay=0.5"]}
    rest = go_on(any_miniature, tmp_path / "out", state_of(undisturbed, 4), **new)
    assert rest.losses[0] == undisturbed.losses[4]  # nothing was trained with it yet
    rates = [rate for event in rest.events_of("step") for rate in event["lr"].values()]
    assert rates == pytest.approx([1e-3 * (8 - step) / 8 for step in (4, 5, 6, 7)])
    (group,) = optimizer_in(rest.output / "short-state")["param_groups"]
    assert group["weight_decay"] == 0.5
    moments = optimizer_in(rest.output / "short-state")["state"].values()
    assert {float(each["step"]) for each in moments} == {8.0}
    told = warnings_of(rest)
    assert "learning_rate: 0.01 in the state, 0.001 now applies" in told
    assert "lr_scheduler: constant in the state, linear now applies" in told
    assert "optimizer_args: unset in the state, weight_decay=0.5 now applies" in told
    with safe_open(rest.output / "short.safetensors", "pt") as file:
        assert file.metadata()["ss_learning_rate"] == "0.001"


def test_a_new_rate_reaches_every_partition_of_a_fused_backward_pass(any_miniature: Any, tmp_path: Path) -> None:
    values = {
        "mixed_precision": "bf16", "full_bf16": True, "fused_backward_pass": True, "max_train_steps": 2,
        "save_state": True, "save_every_n_steps": 1,
    }  # fmt: skip
    whole = train_whole(any_miniature, tmp_path / "whole", **values)
    rest = train_whole(any_miniature, tmp_path / "rest", resume=state_of(whole, 1), **{**values, "learning_rate": 5e-4})
    assert [event["lr"] for event in rest.events_of("step")] == [{"unet": 5e-4}]
    partitions = optimizer_in(rest.output / "short-state")["portions"]
    (rate,) = {float(group["lr"]) for partition in partitions for group in partition["optimizer"]["param_groups"]}
    assert rate == pytest.approx(5e-4)


def test_a_different_model_is_refused_unless_allowed(
    undisturbed: Run, any_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / any_miniature.checkpoint.name
    content = bytearray(any_miniature.checkpoint.read_bytes())
    content[-1] ^= 1
    other.write_bytes(content)
    for tokenizers in any_miniature.checkpoint.parent.glob("*_tokenizers"):
        (tmp_path / tokenizers.name).symlink_to(tokenizers)
    state = state_of(undisturbed, 7)
    made = go_on(any_miniature, tmp_path / "base", state, pretrained_model_name_or_path=other)
    sentence = refused(any_miniature, made, capsys)
    assert "pretrained_model_name_or_path: the state was trained on a different base model" in sentence
    assert "resume_changed_model" in sentence
    sentence = refused(any_miniature, go_on(any_miniature, tmp_path / "alpha", state, network_alpha=2.0), capsys)
    assert "network_alpha: 1.0 in the state, 2.0 now, which changes the strength" in sentence
    wanted = go_on(any_miniature, tmp_path / "wanted", state, network_alpha=2.0, resume_changed_model=True)
    assert wanted.status == 0
    assert any("resume_changed_model allows it" in text for text in warnings_of(wanted))


def test_changes_since_a_state_are_reported_with_the_values_in_use(miniature: Any, tmp_path: Path) -> None:
    script = script_for("sdxl", "lora")

    def origin(root: Path, **values: Any) -> Any:
        named = {**settings_for(miniature), "train_data_dir": root, **values}
        settings = Settings(script, {k: str(v) if isinstance(v, Path) else v for k, v in named.items()})
        return origin_of(model_origin_of(settings), plan_data(settings, seed=1, warn=str), max_steps=8)

    root = images(tmp_path / "images", count=3)
    then = origin(root)
    assert (
        list(changes(then, origin(root, output_name="x", save_every_n_steps=2, compile=True), "train_data_dir")) == []
    )
    moved = Path(shutil.copytree(root, tmp_path / "moved"))
    assert list(changes(then, origin(moved), "train_data_dir")) == [
        f"train_data_dir: {root} in the state, {moved} now applies"
    ]
    new = origin(root, resolution="96,96", gradient_accumulation_steps=2, network_args=["rank_dropout=0.1"])
    assert list(changes(then, new, "train_data_dir")) == [
        "resolution: 64,64 in the state, 96,96 now applies",
        "gradient_accumulation_steps: 1 in the state, 2 now applies",
        "network_args: unset in the state, rank_dropout=0.1 now applies",
    ]
    assert [text.partition(":")[0] for text in changed_models(then, origin(root, network_args=["conv_alpha=2"]))] == [
        "network_args"
    ]
    next((root / "1_noise").glob("*.txt")).write_text("other words")
    assert [text.partition(";")[0] for text in changes(then, origin(root), "train_data_dir")] == [
        "train_data_dir: captions have changed since the state was saved"
    ]
    next((root / "1_noise").glob("*.png")).unlink()
    assert [text.partition(";")[0] for text in changes(then, origin(root), "train_data_dir")] == [
        "train_data_dir: the dataset has changed since the state was saved (3 → 2 images)"
    ]


def spoil(file: Path) -> None:
    """Invert more bytes than stand between two tensors of a state."""
    content = bytearray(file.read_bytes())
    middle = slice(len(content) // 2, len(content) // 2 + 256)
    content[middle] = bytes(byte ^ 255 for byte in content[middle])
    file.write_bytes(content)


def test_a_damaged_state_is_reported_and_the_one_before_is_used(undisturbed: Run, tmp_path: Path) -> None:
    for step in (2, 3, 4):
        state = shutil.copytree(state_of(undisturbed, step), tmp_path / state_of(undisturbed, step).name)
    spoil(state / "state.pt")
    told: list[str] = []
    found = newest_state(tmp_path, "short", told.append)
    assert found
    assert found.progress.step == 3
    assert told == [f"resume: '{state}' is damaged (the checksum of state.pt does not match) and is skipped"]
    with pytest.raises(ValueError, match=r"is damaged: the checksum of state\.pt does not match; choose an older one"):
        read_whole(str(state))
    for step in (2, 3):
        spoil(tmp_path / f"short-step0000000{step}-state" / "state.pt")
    with pytest.raises(ValueError, match=r"resume: no state is intact: .*Remove them to start over"):
        newest_state(tmp_path, "short")


def test_a_changed_progress_file_is_reported_and_the_state_before_is_used(undisturbed: Run, tmp_path: Path) -> None:
    """A digit of another step, a learning rate, a checksum: it still reads as one."""
    for step in (2, 3):
        state = shutil.copytree(state_of(undisturbed, step), tmp_path / state_of(undisturbed, step).name)
    content = (state / "progress.json").read_text()
    for before, after in (('"step": 3', '"step": 7'), ('"seed": ', '"seed": 1'), ('"sha256": "', '"sha256": "0')):
        assert before in content
        (state / "progress.json").write_text(content.replace(before, after))
        told: list[str] = []
        found = newest_state(tmp_path, "short", told.append)
        assert found
        assert found.progress.step == 2
        assert told == [f"resume: '{state}' is damaged (the checksum of progress.json does not match) and is skipped"]
        with pytest.raises(ValueError, match=r"is damaged: the checksum of progress\.json does not match; choose"):
            read_whole(str(state))
    (state / "progress.json").write_text(content)
    assert read_whole(str(state)).progress.step == 3


@pytest.mark.parametrize(
    "broken",
    [
        {"makers": []},
        {"step": None},
        {"batch": 1e400},
        {"files": []},
        {"origin": 3},
        {"origin": {}},
        "[" * 100_000,
        "{}",
    ],
    ids=str,
)
def test_a_broken_progress_file_is_one_sentence(undisturbed: Run, tmp_path: Path, broken: Any) -> None:
    state = shutil.copytree(state_of(undisturbed, 2), tmp_path / "short-state")
    if isinstance(broken, str):
        (state / "progress.json").write_text(broken)
    else:
        rewrite_progress(state, **broken)
    with pytest.raises(ValueError, match=r"resume: '.*' is not a state of this program"):
        read_saved(str(state))


LATEST: dict[str, Any] = {"resume": "latest", "max_train_steps": 6, "save_every_n_steps": 2, "save_state": True}


def test_repeating_the_command_resumes_from_the_newest_state(any_miniature: Any, tmp_path: Path) -> None:
    root = images(tmp_path / "images", count=3)
    whole = train(any_miniature, tmp_path / "whole", train_data_dir=root, **LATEST)
    assert "resumed_from" not in whole.events_of("started")[0]
    output = tmp_path / "out"
    shutil.copytree(whole.output / "short-step00000002-state", output / "short-step00000002-state")
    shutil.copytree(whole.output / "short-step00000004-state", output / "short-step00000004-state")
    rest = train(any_miniature, output, train_data_dir=root, **LATEST)
    assert rest.events_of("started")[0]["resumed_from"] == str(output / "short-step00000004-state")
    assert rest.losses == whole.losses[4:]
    assert equal(rest.tensors(), whole.tensors())
    once_more = train(any_miniature, output, train_data_dir=root, run_dir=output / "again", **LATEST)
    assert once_more.status == 0
    events = list(RunFolder(output / "again").events())
    phases = [event["name"] for event in events if event["kind"] == "phase"]
    assert phases == ["reading the dataset"]  # no model is loaded
    assert {event["kind"] for event in events} == {"phase", "warning", "finished"}
    assert "resume: the run is finished: its state is at its last step, 6" in events[-2]["text"]
    assert events[-1]["path"] == str(output / "short.safetensors")
    assert equal(once_more.tensors(), whole.tensors())  # nothing is left to do, and nothing is spoilt


def test_only_complete_states_of_this_name_are_found(undisturbed: Run, tmp_path: Path) -> None:
    def put(name: str, step: int) -> Path:
        return shutil.copytree(state_of(undisturbed, step), tmp_path / name)

    put("short-step00000002-state", 2)
    put("short-000001-state", 3)
    put("shorter-step00000007-state", 7)
    put(".short-step00000007-state.1.part", 7)
    (put("short-step00000004-state", 4) / "state.pt").unlink()
    (put("short-step00000005-state", 5) / "progress.json").write_text('{"step": 5, "epo')
    cut = put("short-step00000006-state", 6) / "state.pt"
    cut.write_bytes(cut.read_bytes()[:1000])
    found = newest_state(tmp_path, "short")
    assert found
    assert (found.folder.name, found.progress.step) == ("short-000001-state", 3)
    assert newest_state(tmp_path, "long") is None
    assert newest_state(tmp_path / "nowhere", None) is None


def test_a_run_started_again_in_its_folder_prefers_its_own_states(undisturbed: Run, tmp_path: Path) -> None:
    own, earlier = (shutil.copytree(state_of(undisturbed, step), tmp_path / f"short-{step}-state") for step in (2, 4))
    summary = json.loads((earlier / "progress.json").read_text())
    summary["time"] = read_saved(str(own)).time - 10
    del summary[CHECKSUM]
    summary[CHECKSUM] = hashlib.sha256(json.dumps(summary).encode()).hexdigest()
    (earlier / "progress.json").write_text(json.dumps(summary))

    def newest(since: float) -> Path | None:
        found = newest_state(tmp_path, "short", since=since)
        return found.folder if found else None

    assert newest(0.0) == newest(math.inf) == earlier
    assert newest(read_saved(str(own)).time - 1) == own


def put_states(run: Run, output: Path, *steps: int) -> list[Path]:
    """States of `undisturbed` and its images, for a run that resumes from the latest."""
    shutil.copytree(run.output.parent / "images", output.parent / "images")
    return [shutil.copytree(state_of(run, step), output / state_of(run, step).name) for step in steps]


FOREIGN = [
    {"step": 7, "epoch": 3, "batch": 1, "seed": 1, "batches_per_epoch": 3, "makers": {"optimizer_type": "other.Sgd"}},
    {"step": 7, "epoch": 3, "batch": 44, "seed": 1, "batches_per_epoch": 3, "makers": {"optimizer_type": ""}},
    {"step": 7, "epoch": 0, "batch": 0, "seed": 1, "batches_per_epoch": 3, "makers": {"lr_scheduler": "x"}},
]


@pytest.mark.parametrize("summary", FOREIGN, ids=["other optimizer", "batch beyond the epoch", "no optimizer"])
def test_another_programs_summary_does_not_hide_the_older_state(
    summary: dict[str, Any], undisturbed: Run, tmp_path: Path
) -> None:
    _, newest = put_states(undisturbed, tmp_path / "out", 4, 7)
    (newest / "progress.json").write_text(json.dumps(summary))
    told: list[str] = []
    found = newest_state(tmp_path / "out", "short", told.append)
    assert found
    assert found.progress.step == 4
    assert len(told) == 1
    assert str(newest) in told[0]
    assert told[0].endswith("is skipped")


def test_latest_resumes_the_newest_compatible_state_and_refuses_before_loading_without_one(
    undisturbed: Run, any_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older, newest = put_states(undisturbed, tmp_path / "out", 3, 7)
    adamw = json.loads((newest / "progress.json").read_text())
    lion = adamw["makers"] | {"optimizer_type": "lion_pytorch.lion_pytorch.Lion"}
    assert adamw["makers"]["optimizer_type"] == "sd_scripts.MergedAdamW"
    moved = adamw["makers"] | {"optimizer_type": "sd_scripts.earlier_module.MergedAdamW"}
    rewrite_progress(older, makers=moved)
    rewrite_progress(newest, makers=lion)
    own: dict[str, Any] = {"train_data_dir": tmp_path / "images"}
    rest = train(any_miniature, tmp_path / "out", **own, **STATES | {"resume": "latest", "save_every_n_steps": None})
    assert rest.losses == undisturbed.losses[3:]
    (skipped,) = [text for text in warnings_of(rest) if "skipped" in text]
    assert str(newest) in skipped
    assert "different optimizer_type (lion" in skipped
    for number, changed in enumerate(({"optimizer_type": "Adafactor"}, {"network_dim": 3}, {"network_alpha": 7.0})):
        folder = tmp_path / str(number) / "out"
        put_states(undisturbed, folder, 3, 4)
        run = train(any_miniature, folder, **STATES | {"resume": "latest", **changed})
        assert next(iter(changed)) in refused(any_miniature, run, capsys)
        assert {event["name"] for event in run.events_of("phase")} <= {"reading the dataset"}, "nothing is loaded"


def test_the_later_of_two_states_of_a_step_is_found(undisturbed: Run, tmp_path: Path) -> None:
    for name, time in (("short-step00000003-state", 5.0), ("short-000001-state", 7.0), ("short-state", 6.0)):
        rewrite_progress(shutil.copytree(state_of(undisturbed, 3), tmp_path / name), time=time)
    found = newest_state(tmp_path, "short")
    assert found
    assert found.folder.name == "short-000001-state"


def test_leftovers_of_killed_processes_are_removed_and_files_set_aside_restored(tmp_path: Path) -> None:
    dead = 2**22 + 1  # Linux has no such process
    for folder in (f".short-state.{dead}.old", f".short-step00000002-state.{dead}.part", "short-step00000004-state"):
        (tmp_path / folder).mkdir()
    (tmp_path / f".short-step00000004-state.{dead}.old").mkdir()
    (tmp_path / f".short-step00000004-state.{dead}.gone").mkdir()
    mine, parent, others = f".short.safetensors.{os.getpid()}.part", f".short.png.{os.getppid()}.part", ".notes.1.part"
    for file in (mine, parent, others, f".write-test-{dead}", "short.safetensors"):
        (tmp_path / file).touch()
    run, earlier = tmp_path / "run", tmp_path / "runs" / "20261122-short"
    for folder in (run, earlier):
        folder.mkdir(parents=True)
        for name in ("config.toml", f".config.toml.{dead}.part", f".process.json.{dead}.part"):
            (folder / name).touch()
            os.utime(folder / name, (0, 0))
    clean_up(tmp_path, "short", run)
    assert [[path.name for path in folder.iterdir()] for folder in (run, earlier)] == [["config.toml"]] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        others, parent, "run", "runs", "short-state", "short-step00000004-state", "short.safetensors",
    ]  # fmt: skip


def test_unfinished_caches_of_killed_processes_are_removed_once_they_are_old(
    any_miniature: Any, tmp_path: Path
) -> None:
    dead = 2**22 + 1  # Linux has no such process
    root = images(tmp_path / "images")
    (folder,) = root.iterdir()
    left = [folder / f".noise0_sdxl.{kind}.{dead}.part" for kind in ("npz", "safetensors", "txt")]
    alive, new = folder / f".noise1_sdxl.npz.{os.getppid()}.part", folder / f".noise2_sdxl.npz.{dead}.part"
    for file in (*left, alive, new):
        file.touch()
    for file in (*left, alive):
        os.utime(file, (0, 0))
    assert train(any_miniature, tmp_path / "out", train_data_dir=root, max_train_steps=1).status == 0
    assert sorted(path for path in folder.iterdir() if path.name.startswith(".")) == sorted([left[2], alive, new])


def test_a_first_run_reports_that_there_is_no_state_yet(
    any_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = train(any_miniature, tmp_path / "out", resume="latest", max_train_steps=1)
    assert made.steps == [1]
    assert "resume: starting from the beginning" in capsys.readouterr().err


def test_a_run_shortened_below_its_state_is_reported(
    undisturbed: Run, any_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(state_of(undisturbed, 4), tmp_path / "out" / "short-step00000004-state")
    made = train(any_miniature, tmp_path / "out", resume="latest", max_train_steps=3)
    assert "the state is at step 4, but the run ends at step 3" in refused(any_miniature, made, capsys)


FROM_IMAGES: dict[str, Any] = {
    **LATEST, "resume": None, "cache_latents": None, "cache_text_encoder_outputs": None, "shuffle_caption": True,
}  # fmt: skip
"""The loader's random reads in each step."""


@pytest.mark.usefixtures("no_graphs")
def test_a_compiled_run_resumes_with_a_different_number_of_workers(any_miniature: Any, tmp_path: Path) -> None:
    compiled = {"compile": True, "compile_backend": "eager"}
    root = images(tmp_path / "images", count=3)
    whole = train(any_miniature, tmp_path / "whole", train_data_dir=root, **FROM_IMAGES, **compiled)
    torch._dynamo.reset()
    values = {**FROM_IMAGES, "max_data_loader_n_workers": 2, "resume": state_of(whole, 4)}
    rest = train(any_miniature, tmp_path / "rest", train_data_dir=root, **values, **compiled)
    assert rest.status == 0
    assert rest.losses == whole.losses[4:]
    assert equal(rest.tensors(), whole.tensors())
