"""On a GPU: steps that are recorded as CUDA graphs train like others, whatever else the run does; and so do those
whose update is recorded too."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.observed_run import launch_processes
from sd_scripts.runs.folder import RunFolder
from sd_scripts.tools.timed_run import ROOT
from sd_scripts.training import trainer
from sd_scripts.training.compiling.compile_progress import RECORDING
from sd_scripts.training.execution.recorded import RecordedUpdates
from sd_scripts.training.methods.lora import AdapterGradients
from tests.support.data import make_folder
from tests.support.training import ALONE, FULL, PIVOTAL, Run, equal, train, train_whole
from tests.training.methods.test_ddp import configure

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: CUDA graphs"),
    pytest.mark.usefixtures("no_graphs"),
]

STEPS: dict[str, Any] = {"max_train_steps": 20, "mixed_precision": "bf16", "learning_rate": 1e-3, "deterministic": True}
PLAIN = {**STEPS, "record_steps": False}
COMPILED = {**PLAIN, "compile": True}
RECORDED = {**COMPILED, "compile_mode": "reduce-overhead"}
HALF = {"full_bf16": True}
STATES = {**STEPS, "save_state": True}
SHAPES: list[tuple[int, int]] = [(96, 96), (96, 96), (64, 128), (64, 128), (128, 64)]


def recorded(run: Run) -> int:
    return sum(event["name"] == RECORDING for event in run.events_of("phase"))


def warned(run: Run) -> list[str]:
    return [event["text"] for event in run.events_of("warning") if "CUDA graph" in event["text"]]


def same(run: Run, plain: Run, *, graphs: int = 1) -> None:
    assert run.status == plain.status == 0
    assert warned(run) == []
    assert recorded(run) == graphs
    assert run.losses == plain.losses
    assert equal(run.tensors(), plain.tensors())


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"network_dim": 8},
        {"network_dim": 8, "gradient_checkpointing": True},
        {"gradient_checkpointing": True},
        {"network_dropout": 0.2},
        {"use_ema": True},
        {"optimizer_type": "Prodigy", "learning_rate": 1.0},
        {"full_bf16": True},
        {"mixed_precision": "no"},
        {"activation_memory_budget": 0.5},
        {"network_type": "dora", "network_dim": 8},
        {"network_type": "lokr", "factor": 2, "network_dim": 4},
        {"network_type": "lokr", "dora_wd": True},
        {"network_type": "loha"},
        {"network_type": "oft", "network_dim": 8},
        {"lora_init": "pissa"},
    ],
    ids=lambda more: ",".join(more),
)
def test_a_recorded_lora_trains_identically(more: dict[str, Any], each_miniature: Any, tmp_path: Path) -> None:
    run = train(each_miniature, tmp_path / "run", **{**RECORDED, **more})
    same(run, train(each_miniature, tmp_path / "plain", **{**COMPILED, **more}))


def test_a_recorded_lora_trains_identically_without_a_compiler(
    each_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two captions in each batch and none padded: Qwen-Image gives attention a mask only for several captions,
    or in a run with `compile`, which pads them."""
    monkeypatch.setattr("sd_scripts.families.common.encoders.captions.STEP", 1)
    run = train(each_miniature, tmp_path / "run", **COMPILED, compile_backend="cudagraphs", train_batch_size=2)
    same(run, train(each_miniature, tmp_path / "plain", **PLAIN, train_batch_size=2))
    assert run.events_of("compile")[-1:] == [] or not run.events_of("compile")[-1].get("graphs")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"compile": True},
        {"gradient_checkpointing": True, "network_dropout": 0.0},
        {"network_train_unet_only": None, "cache_text_encoder_outputs": None, "mixed_precision": "no"},
        {"mixed_precision": "fp16"},
        {"optimizer_type": "AdamW8bit"},
        {"optimizer_type": "Lion8bit"},  # whose kernels run on the default stream
        {"quantize_base": "nf4", "quantize_text_encoders": "nf4"},
    ],
    ids=lambda more: ",".join(more),
)
def test_steps_are_recorded_by_default(more: dict[str, Any], each_miniature: Any, tmp_path: Path) -> None:
    run = train(each_miniature, tmp_path / "run", **{**STEPS, **more})
    same(run, train(each_miniature, tmp_path / "plain", **{**PLAIN, **more}))


@pytest.mark.parametrize("more", [{}, {"compile": True}, {"gradient_checkpointing": True}], ids=",".join)
@pytest.mark.parametrize(("method", "own"), [("textual_inversion", ALONE), ("lora", PIVOTAL)])
def test_steps_that_train_embeddings_are_recorded(
    method: str, own: dict[str, Any], more: dict[str, Any], miniature: Any, tmp_path: Path
) -> None:
    """Up to rounding, as where text encoders are trained."""
    given = {**own, "mixed_precision": "no", **more}
    run = train(miniature, tmp_path / "run", method, **{**STEPS, **given})
    plain = train(miniature, tmp_path / "plain", method, **{**PLAIN, **given})
    assert (run.status, plain.status, warned(run), recorded(run)) == (0, 0, [], 1)
    assert run.losses == pytest.approx(plain.losses, rel=1e-3)
    for name, tensor in run.tensors().items():
        torch.testing.assert_close(tensor, plain.tensors()[name], rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("more", [HALF, {}, {"gradient_checkpointing": True}], ids=lambda more: ",".join(more))
def test_steps_of_a_whole_model_are_recorded(more: dict[str, Any], each_miniature: Any, tmp_path: Path) -> None:
    run = train_whole(each_miniature, tmp_path / "run", **STEPS, **more)
    same(run, train_whole(each_miniature, tmp_path / "plain", **PLAIN, **more))


def test_swapped_blocks_are_silently_not_recorded(flux_miniature: Any, tmp_path: Path) -> None:
    run = train(flux_miniature, tmp_path / "run", **STEPS, blocks_to_swap=1)
    assert (run.status, recorded(run), warned(run)) == (0, 0, [])


@pytest.mark.parametrize(
    "more",
    [HALF, {}, {**HALF, "gradient_checkpointing": True}, {**HALF, "optimizer_type": "Adafactor"}],
    ids=lambda more: ",".join(more),
)
def test_a_recorded_whole_model_trains_identically(more: dict[str, Any], each_miniature: Any, tmp_path: Path) -> None:
    run = train_whole(each_miniature, tmp_path / "run", **RECORDED, **more)
    same(run, train_whole(each_miniature, tmp_path / "plain", **COMPILED, **more))


def on_two_gpus(script: str, folder: Path, miniature: Any, **values: Any) -> Run:
    folder.mkdir()
    config = configure(folder, miniature, **values)
    command = [sys.executable, *launch_processes(2, fsdp=False), str(ROOT / "sd_scripts" / script)]
    status = subprocess.run([*command, "--config_file", str(config)], timeout=300).returncode
    return Run(status, folder / "out", RunFolder(folder / "out" / "run"))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize(
    ("script", "more"), [("sdxl_train_network.py", {}), ("sdxl_train.py", FULL), ("sdxl_train.py", {**FULL, **HALF})]
)
def test_two_gpus_train_identically(script: str, more: dict[str, Any], miniature: Any, tmp_path: Path) -> None:
    run = on_two_gpus(script, tmp_path / "recorded", miniature, **{**STEPS, **more})
    same(run, on_two_gpus(script, tmp_path / "plain", miniature, **{**PLAIN, **more}))


@pytest.mark.parametrize("method", [train, train_whole])
def test_micro_steps_of_several_shapes_accumulate(method: Any, miniature: Any, tmp_path: Path) -> None:
    make_folder(tmp_path / "shapes" / "2_noise", SHAPES)
    more = {"gradient_accumulation_steps": 2, "train_data_dir": tmp_path / "shapes", "resolution": "96,96"}
    more |= HALF if method is train_whole else {}
    run = method(miniature, tmp_path / "run", **RECORDED, **more)
    plain = method(miniature, tmp_path / "plain", **COMPILED, **more)
    assert warned(run) == []
    assert recorded(run) >= 3
    assert run.losses == plain.losses
    assert equal(run.tensors(), plain.tensors())


def test_half_precision_with_its_loss_scale(each_miniature: Any, tmp_path: Path) -> None:
    half = {"mixed_precision": "fp16"}
    run = train(each_miniature, tmp_path / "run", **{**RECORDED, **half})
    same(run, train(each_miniature, tmp_path / "plain", **{**COMPILED, **half}))


def test_samples_states_and_checks_in_between_change_nothing(each_miniature: Any, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a blue square --w 64 --h 64 --s 2\n")
    more = {"sample_prompts": prompts, "sample_every_n_steps": 6, "save_every_n_steps": 8, "compile_check_every": 7}
    run = train(each_miniature, tmp_path / "run", **RECORDED, **more)
    assert run.losses == train(each_miniature, tmp_path / "plain", **COMPILED).losses
    assert recorded(run) == 1
    assert len(run.events_of("sample")) == 3


def test_a_resumed_run_ends_like_an_uninterrupted_one(each_miniature: Any, tmp_path: Path) -> None:
    values = {**RECORDED, "save_state": True, "save_every_n_steps": 10}
    whole = train(each_miniature, tmp_path / "whole", **values)
    state = next(tmp_path.glob("whole/*step00000010-state"))
    again = train(each_miniature, tmp_path / "again", **values, resume=state)
    assert recorded(again) == 1
    assert equal(again.tensors(), whole.tensors())


def test_recorded_text_encoders_train_identically(each_miniature: Any, tmp_path: Path) -> None:
    """Up to rounding: transformers gives them a mask while a graph is recorded, and else none."""
    more = {"network_train_unet_only": None, "cache_text_encoder_outputs": None, "mixed_precision": "no"}
    run = train(each_miniature, tmp_path / "run", **{**RECORDED, **more, "compile_check_every": 1})
    plain = train(each_miniature, tmp_path / "plain", **{**COMPILED, **more})
    assert (run.status, warned(run), recorded(run)) == (0, [], 1)
    checks = run.events_of("compile_check")
    assert len(checks) == 20
    assert max(check["gradient_difference"] for check in checks) < 1e-3
    assert run.losses == pytest.approx(plain.losses, rel=0.01)


@pytest.mark.parametrize(
    "mode", [{"compile_mode": "reduce-overhead"}, {"compile_backend": "cudagraphs"}, {"record_steps": True}]
)
def test_a_step_that_cannot_be_recorded_is_reported_and_the_run_continues(
    mode: dict[str, str], miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", full)
    run = train(miniature, tmp_path / "run", **{**COMPILED, **mode})
    (told,) = warned(run)
    assert told.startswith(f"{next(iter(mode))}: the step cannot be recorded as a CUDA graph: OutOfMemoryError: CUDA")
    assert run.losses == pytest.approx(train(miniature, tmp_path / "plain", **COMPILED).losses, rel=0.02)


@pytest.mark.parametrize("more", [{}, {"network_dropout": 0.2}], ids=lambda more: ",".join(more))
def test_an_operation_that_cannot_be_recorded_is_reported_and_the_run_continues(
    more: dict[str, Any], miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss that waits for the GPU. Random numbers are drawn as before."""
    from sd_scripts.families.sdxl import objective

    compute = objective.per_sample_loss

    def waits(prediction: Any, *others: Any, **named: Any) -> Any:
        prediction.sum().item()
        return compute(prediction, *others, **named)

    monkeypatch.setattr(objective, "per_sample_loss", waits)
    run = train(miniature, tmp_path / "run", **RECORDED, **more)
    (told,) = warned(run)
    assert "the step cannot be recorded as a CUDA graph" in told
    assert run.losses == train(miniature, tmp_path / "plain", **COMPILED, **more).losses


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each update that was to be recorded could be."""
    found: list[bool] = []
    record = RecordedUpdates._recorded

    def noted(self: RecordedUpdates, averages: Any) -> Any:
        graph = record(self, averages)
        found.append(graph is not None)
        return graph

    monkeypatch.setattr(RecordedUpdates, "_recorded", noted)
    return found


def tensors_of(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Contents of a state, as names and tensors or plain values."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from tensors_of(each, f"{name}/{key}")
    elif isinstance(value, list | tuple):
        for key, each in enumerate(value):
            yield from tensors_of(each, f"{name}/{key}")
    else:
        yield name, value


def last_state(run: Run) -> dict[str, Any]:
    """The state at the end of a run, as names and values."""
    folder = max(run.output.glob("*-state"), key=lambda path: path.stat().st_mtime)
    return dict(tensors_of(torch.load(folder / "state.pt", map_location="cpu", weights_only=True)))


def same_state(run: Run, plain: Run) -> None:
    assert run.status == plain.status == 0
    assert warned(run) == []
    assert [step.get("loss") for step in run.events_of("step")] == [
        step.get("loss") for step in plain.events_of("step")
    ]
    ours, wanted = last_state(run), last_state(plain)
    assert ours.keys() == wanted.keys()
    different = [
        name
        for name, value in ours.items()
        if not (torch.equal(value, wanted[name]) if isinstance(value, torch.Tensor) else value == wanted[name])
    ]
    assert different == []


@pytest.mark.parametrize(
    ("more", "graphs"),
    [
        ({"lr_scheduler": "cosine", "lr_warmup_steps": 6}, 1),
        ({"max_grad_norm": 0.0}, 1),
        ({"max_grad_norm": 1e-3}, 1),
        ({"use_ema": True}, 1),
        ({"use_ema": True, "ema_update_interval": 2}, 2),
        ({"use_ema": True, "ema_device": "cpu"}, 1),
        ({"scale_weight_norms": 0.01}, 1),
        ({"mixed_precision": "fp16"}, 1),
        ({"network_dim": 8, "compile": True}, 1),
        ({"network_type": "dora", "network_dim": 8}, 1),
        ({"network_args": ["ggpo_beta=0.01", "ggpo_sigma=0.03"]}, 1),
        ({"optimizer_type": "Prodigy", "learning_rate": 1.0}, 0),
        ({"optimizer_type": "AdamW8bit", "network_dim": 64}, 1),
        ({"optimizer_type": "Lion8bit"}, 0),
        ({"optimizer_args": ["fused=False"]}, 0),
    ],
    ids=str,
)
def test_the_update_of_a_lora_is_recorded(
    more: dict[str, Any], graphs: int, miniature: Any, updates: list[bool], tmp_path: Path
) -> None:
    run = train(miniature, tmp_path / "run", **{**STATES, **more})
    assert updates == [True] * graphs
    same_state(run, train(miniature, tmp_path / "plain", **{**STATES, **more, "record_steps": False}))


@pytest.mark.parametrize(
    ("more", "graphs"),
    [
        (HALF, 1),
        ({}, 1),
        ({"optimizer_args": ["fused=True"]}, 1),
        ({"mixed_precision": "fp16"}, 1),
        ({**HALF, "use_ema": True, "max_grad_norm": 0.0}, 1),
        ({"use_ema": True, "lr_scheduler": "linear", "lr_warmup_steps": 5}, 1),
        ({**HALF, "optimizer_type": "AdamW8bit"}, 1),
        ({"optimizer_type": "AdamW8bit"}, 1),
        ({**HALF, "optimizer_type": "Adafactor"}, 0),
    ],
    ids=str,
)
def test_the_update_of_a_whole_model_is_recorded(
    more: dict[str, Any], graphs: int, miniature: Any, updates: list[bool], tmp_path: Path
) -> None:
    run = train_whole(miniature, tmp_path / "run", **{**STATES, **more})
    assert updates == [True] * graphs
    same_state(run, train_whole(miniature, tmp_path / "plain", **{**STATES, **more, "record_steps": False}))


@pytest.mark.parametrize("more", [{}, HALF], ids=str)
@pytest.mark.parametrize("method", [train, train_whole])
def test_one_recorded_update_serves_all_shapes(
    method: Any, more: dict[str, Any], miniature: Any, updates: list[bool], tmp_path: Path
) -> None:
    make_folder(tmp_path / "shapes" / "2_noise", SHAPES)
    more = {**more, "gradient_accumulation_steps": 2, "resolution": "96,96", "train_data_dir": tmp_path / "shapes"}
    run = method(miniature, tmp_path / "run", **{**STATES, **more})
    assert updates == [True]
    same_state(run, method(miniature, tmp_path / "plain", **{**STATES, **more, "record_steps": False}))


@pytest.mark.parametrize(("method", "more"), [(train, {"use_ema": True}), (train_whole, HALF)])
def test_a_run_resumed_between_recorded_updates_ends_the_same(
    method: Any, more: dict[str, Any], miniature: Any, updates: list[bool], tmp_path: Path
) -> None:
    values = {**STATES, **more, "save_every_n_steps": 10, "lr_scheduler": "cosine"}
    whole = method(miniature, tmp_path / "whole", **values)
    again = method(miniature, tmp_path / "again", **values, resume=next(tmp_path.glob("whole/*step00000010-state")))
    assert updates == [True, True]
    assert again.losses == whole.losses[10:]
    ours, wanted = last_state(again), last_state(whole)
    assert all(torch.equal(each, wanted[name]) for name, each in ours.items() if isinstance(each, torch.Tensor))


@pytest.mark.parametrize(("method", "more"), [(train, {}), (train_whole, HALF)])
def test_a_step_that_is_not_finite_is_skipped_by_a_recorded_update(
    method: Any, more: dict[str, Any], miniature: Any, updates: list[bool], tmp_path: Path, monkeypatch: Any
) -> None:
    """Step 12's latents are infinite, whose update is a replayed one."""
    compute = trainer.step_inputs

    def infinite(data: Any, batch: Any, *key: object, **options: Any) -> Any:
        found = compute(data, batch, *key, **options)
        target = {"target": found.model["target"] * float("inf")} if key == (11, 0) else {}
        return replace(found, model=found.model | target)

    monkeypatch.setattr(trainer, "step_inputs", infinite)
    values = {**STATES, **more, "max_nonfinite_steps": 3}
    run = method(miniature, tmp_path / "run", **values)
    plain = method(miniature, tmp_path / "plain", **values, record_steps=False)
    assert updates == [True]
    assert "loss" not in run.events_of("step")[11]
    same_state(run, plain)


def test_an_update_that_cannot_be_recorded_is_reported_and_the_rest_is_replayed(
    miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = AdapterGradients.clip

    def waits(self: AdapterGradients, max_norm: float) -> Any:
        norm = clip(self, max_norm)
        norm.item()
        return norm

    monkeypatch.setattr(AdapterGradients, "clip", waits)
    run = train(miniature, tmp_path / "run", **STATES)
    (told,) = warned(run)
    assert told.startswith("record_steps: the update cannot be recorded as a CUDA graph: ")
    assert recorded(run) == 1
    plain = train(miniature, tmp_path / "plain", **STATES, record_steps=False)
    assert run.losses == plain.losses
    assert equal(run.tensors(), plain.tensors())
