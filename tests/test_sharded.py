"""Two processes over gloo whose weights are in shards (FSDP2): they train what one process trains."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_ddp import TOLERANCE, apart, configure, copies, fork, train_as_two
from test_full_run import base_of, learned
from training_help import FULL, Run, equal, train_whole

from sd_scripts.runs.folder import RunFolder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo without CUDA is tried on Linux")

BF16 = {"mixed_precision": "bf16", "save_precision": "float"}
HALF = {"mixed_precision": "bf16", "full_bf16": True}
COMPILED = {"compile": True, "compile_backend": "aot_eager"}


@pytest.fixture(autouse=True)
def _launched_with_fsdp(monkeypatch: pytest.MonkeyPatch) -> None:
    """What accelerate launch --use_fsdp --fsdp_version 2 tells the processes; a single one has no use for it."""
    for name, value in {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}.items():
        monkeypatch.setenv(name, value)


def train_shards(folder: Path, miniature: Any, **values: Any) -> Run:
    """Full training by two processes, each of which holds about half of the weights; what they left behind."""
    folder.mkdir(exist_ok=True)
    statuses, told = fork(configure(folder, miniature, **{**FULL, **values}), miniature.family, "full")
    assert statuses == [0, 0], told
    one, other = (sum(rows.numel() for name, rows in held.items() if name != "losses") for held in copies(folder))
    assert 0.9 < one / other < 1.2
    assert one + other == sum(w.numel() for n, w in base_of(miniature).items() if n in learned(base_of(miniature)))
    return Run(0, folder / "out", RunFolder(folder / "out" / "run"))


@pytest.mark.parametrize(
    "more",
    [{}, {"gradient_checkpointing": True}, {**COMPILED, "gradient_accumulation_steps": 1}],
    ids=["plain", "checkpointed", "compiled"],
)
def test_shards_learn_what_whole_weights_do(
    more: dict[str, Any], each_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = train_shards(tmp_path / "two", each_miniature, **more)
    one = train_as_two(two, each_miniature, monkeypatch)
    assert two.losses == pytest.approx(one.losses, rel=1e-5)
    assert apart(two, one, each_miniature) < TOLERANCE
    assert two.files == ["short.safetensors"]
    assert [event["breaks"] for event in two.told("compile")[-1:]] == [0] * ("compile" in more)


EVERYTHING: dict[str, Any] = {
    **BF16, "use_ema": True, "max_train_steps": 4, "save_state": True, "save_every_n_steps": 2,
    "validation_split": 0.34, "validate_every_n_steps": 2, "sample_every_n_steps": 2,
}  # fmt: skip


def with_prompts(folder: Path) -> dict[str, str]:
    prompts = folder / "prompts.txt"
    prompts.write_text("\n".join(f"a {colour} circle --w 64 --h 64 --s 1 --d 1" for colour in ("red", "blue", "green")))
    return {"sample_prompts": str(prompts)}


def test_masters_averages_validation_and_pictures_are_those_of_whole_weights(
    each_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {**EVERYTHING, **with_prompts(tmp_path)}
    two = train_shards(tmp_path / "two", each_miniature, **values)
    prompts = [event["prompt"].split()[1] for event in two.told("sample")]
    assert prompts == ["red", "blue", "green"] * 2
    assert len({event["path"] for event in two.told("sample")}) == len(list((two.output / "sample").iterdir()))
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "false")
    plain = tmp_path / "plain"
    plain.mkdir()
    statuses, told = fork(configure(plain, each_miniature, **{**FULL, **values}), each_miniature.family, "full")
    assert statuses == [0, 0], told
    whole = Run(0, plain / "out", RunFolder(plain / "out" / "run"))
    assert two.losses == pytest.approx(whole.losses, rel=1e-2)
    validated = [[event["loss"] for event in each.told("validation")] for each in (two, whole)]
    assert validated[0] == pytest.approx(validated[1], rel=1e-2)
    assert two.files == whole.files
    print(apart(two, whole, each_miniature))


def test_a_resumed_run_in_shards_is_the_undisturbed_one(each_miniature: Any, tmp_path: Path) -> None:
    values = {**HALF, "use_ema": True, "max_train_steps": 4, "save_state": True, "save_every_n_steps": 2}
    whole = train_shards(tmp_path / "runs", each_miniature, **values)
    losses, files = whole.losses, ("short.safetensors", "short-ema.safetensors")
    tensors = [whole.tensors(file) for file in files]
    state = whole.output.rename(tmp_path / "whole") / "short-step00000002-state"
    again = train_shards(tmp_path / "runs", each_miniature, **values, resume=str(state))
    assert again.losses == losses[2:]
    assert all(equal(again.tensors(file), before) for file, before in zip(files, tensors, strict=True))


def test_one_process_goes_on_from_a_state_of_two_and_two_from_that_of_one(flux_miniature: Any, tmp_path: Path) -> None:
    values = {**BF16, "use_ema": True, "save_state_on_train_end": True}
    two = train_shards(tmp_path / "two", flux_miniature, **values, max_train_steps=2)
    one = train_whole(
        flux_miniature, tmp_path / "one", **values, max_train_steps=4, resume=two.output / "short-state",
        train_data_dir=tmp_path / "two" / "pictures",
    )  # fmt: skip
    assert one.steps == [3, 4]
    state = torch.load(one.output / "short-state" / "state.pt", weights_only=True)
    assert {s["step"] for s in state["optimizer"]["state"].values()} == {4}
    (tmp_path / "three").mkdir()
    last = train_shards(
        tmp_path / "three", flux_miniature, **values, max_train_steps=5, resume=str(one.output / "short-state")
    )
    assert last.steps == [5]
    assert last.losses[0] == pytest.approx(one.losses[-1], rel=0.5)
