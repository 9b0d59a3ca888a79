"""On a GPU: steps that are recorded as CUDA graphs learn what others do, whatever else is asked of the run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from data_help import make_folder
from training_help import ALONE, PIVOTAL, Run, equal, train, train_whole

from sd_scripts.training.compile_progress import RECORDING

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: CUDA graphs"),
    pytest.mark.usefixtures("no_graphs"),
]

STEPS: dict[str, Any] = {"max_train_steps": 20, "mixed_precision": "bf16", "learning_rate": 1e-3, "deterministic": True}
PLAIN = {**STEPS, "record_steps": False}
COMPILED = {**PLAIN, "compile": True}
RECORDED = {**COMPILED, "compile_mode": "reduce-overhead"}
HALF = {"full_bf16": True}


def recorded(run: Run) -> int:
    return sum(event["name"] == RECORDING for event in run.told("phase"))


def warned(run: Run) -> list[str]:
    return [event["text"] for event in run.told("warning") if "CUDA graph" in event["text"]]


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
def test_a_lora_learns_the_same(more: dict[str, Any], each_miniature: Any, tmp_path: Path) -> None:
    run = train(each_miniature, tmp_path / "run", **{**RECORDED, **more})
    same(run, train(each_miniature, tmp_path / "plain", **{**COMPILED, **more}))


def test_without_a_compiler_it_learns_the_same(each_miniature: Any, tmp_path: Path) -> None:
    run = train(each_miniature, tmp_path / "run", **COMPILED, compile_backend="cudagraphs")
    same(run, train(each_miniature, tmp_path / "plain", **PLAIN))
    assert run.told("compile")[-1:] == [] or not run.told("compile")[-1].get("graphs")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"compile": True},
        {"gradient_checkpointing": True, "network_dropout": 0.0},
        {"network_train_unet_only": None, "cache_text_encoder_outputs": None, "mixed_precision": "no"},
        {"mixed_precision": "fp16"},
        {"optimizer_type": "AdamW8bit"},  # whose kernels run on the default stream
        {"quantize_base": "nf4", "quantize_text_encoders": "nf4"},
    ],
    ids=lambda more: ",".join(more),
)
def test_steps_are_recorded_unless_told_otherwise(more: dict[str, Any], each_miniature: Any, tmp_path: Path) -> None:
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
def test_a_whole_model_learns_the_same(more: dict[str, Any], each_miniature: Any, tmp_path: Path) -> None:
    run = train_whole(each_miniature, tmp_path / "run", **RECORDED, **more)
    same(run, train_whole(each_miniature, tmp_path / "plain", **COMPILED, **more))


@pytest.mark.parametrize("method", [train, train_whole])
def test_micro_steps_of_several_shapes_accumulate(method: Any, miniature: Any, tmp_path: Path) -> None:
    make_folder(tmp_path / "shapes" / "2_noise", [(96, 96), (96, 96), (64, 128), (64, 128), (128, 64)])
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
    assert len(run.told("sample")) == 3


def test_a_resumed_run_ends_as_if_nothing_had_been(each_miniature: Any, tmp_path: Path) -> None:
    values = {**RECORDED, "save_state": True, "save_every_n_steps": 10}
    whole = train(each_miniature, tmp_path / "whole", **values)
    state = next(tmp_path.glob("whole/*step00000010-state"))
    again = train(each_miniature, tmp_path / "again", **values, resume=state)
    assert recorded(again) == 1
    assert equal(again.tensors(), whole.tensors())


def test_text_encoders_learn_the_same(each_miniature: Any, tmp_path: Path) -> None:
    """Up to rounding: transformers gives them a mask while a graph is recorded, and else none."""
    more = {"network_train_unet_only": None, "cache_text_encoder_outputs": None, "mixed_precision": "no"}
    run = train(each_miniature, tmp_path / "run", **{**RECORDED, **more, "compile_check_every": 1})
    plain = train(each_miniature, tmp_path / "plain", **{**COMPILED, **more})
    assert (run.status, warned(run), recorded(run)) == (0, [], 1)
    checks = run.told("compile_check")
    assert len(checks) == 20
    assert max(check["gradient_difference"] for check in checks) < 1e-3
    assert run.losses == pytest.approx(plain.losses, rel=0.01)


@pytest.mark.parametrize(
    "mode", [{"compile_mode": "reduce-overhead"}, {"compile_backend": "cudagraphs"}, {"record_steps": True}]
)
def test_a_step_that_cannot_be_recorded_is_told_and_the_run_goes_on(
    mode: dict[str, str], miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", full)
    run = train(miniature, tmp_path / "run", **{**COMPILED, **mode})
    (told,) = warned(run)
    assert told.startswith(f"{next(iter(mode))}: the step cannot be recorded as a CUDA graph: OutOfMemoryError: CUDA")
    assert run.losses == pytest.approx(train(miniature, tmp_path / "plain", **COMPILED).losses, rel=0.02)


def test_what_cannot_run_while_recording_is_told_and_the_run_goes_on(
    miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss that waits for the GPU."""
    from sd_scripts.families.sdxl import objective

    compute = objective.per_sample_loss

    def waits(prediction: Any, *others: Any, **named: Any) -> Any:
        prediction.sum().item()
        return compute(prediction, *others, **named)

    monkeypatch.setattr(objective, "per_sample_loss", waits)
    run = train(miniature, tmp_path / "run", **RECORDED)
    (told,) = warned(run)
    assert "the step cannot be recorded as a CUDA graph" in told
    assert run.losses == train(miniature, tmp_path / "plain", **COMPILED).losses
