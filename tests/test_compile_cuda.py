"""On a GPU: whatever CUDA graphs do, the run goes on, with the losses of one that is not compiled."""

from pathlib import Path
from typing import Any

import pytest
import torch
from training_help import Run, train

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: CUDA graphs"),
    pytest.mark.usefixtures("no_graphs"),
]

STEPS: dict[str, Any] = {"max_train_steps": 8, "mixed_precision": "no"}
"""The first run of a graph allocates, the second is recorded, later ones are replayed. In float32, where the rounding
of compiled and eager kernels does not grow over the steps."""
REDUCED = {**STEPS, "compile": True, "compile_mode": "reduce-overhead"}


def of_compiling(run: Run) -> list[str]:
    return [event["text"] for event in run.told("warning") if "compile" in event["text"]]


def losses_agree(run: Run, plain: Run) -> None:
    assert run.status == plain.status == 0
    assert run.losses == pytest.approx(plain.losses, rel=0.01)


def test_cuda_graphs_replay_the_steps(each_miniature: Any, tmp_path: Path) -> None:
    run = train(each_miniature, tmp_path / "run", **REDUCED)
    losses_agree(run, train(each_miniature, tmp_path / "plain", **STEPS))
    assert of_compiling(run) == []


def test_a_run_with_gradient_checkpointing_is_compiled_without_cuda_graphs(each_miniature: Any, tmp_path: Path) -> None:
    run = train(each_miniature, tmp_path / "run", **REDUCED, gradient_checkpointing=True)
    losses_agree(run, train(each_miniature, tmp_path / "plain", **STEPS))
    (told,) = of_compiling(run)
    assert told.startswith("compile_mode: reduce-overhead replays CUDA graphs")


def test_what_the_backend_cudagraphs_cannot_record_ends_no_run(miniature: Any, tmp_path: Path) -> None:
    values = {**STEPS, "compile": True, "compile_backend": "cudagraphs", "gradient_checkpointing": True}
    run = train(miniature, tmp_path / "run", **values)
    losses_agree(run, train(miniature, tmp_path / "plain", **STEPS))


@pytest.mark.parametrize("what", ["record_function", "execute_node"])
def test_an_error_out_of_a_cuda_graph_is_told_and_the_run_goes_on_in_the_default_mode(
    what: str, miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While recording, and while replaying."""
    from torch._inductor.cudagraph_trees import CUDAGraphTreeManager

    do, calls = getattr(CUDAGraphTreeManager, what), []

    def fails_once(*arguments: Any) -> Any:
        calls.append(what)
        if len(calls) == 3:
            raise RuntimeError("graph recording observed an input tensor deallocate during graph recording")
        return do(*arguments)

    monkeypatch.setattr(CUDAGraphTreeManager, what, fails_once)
    run = train(miniature, tmp_path / "run", **REDUCED)
    assert len(calls) == 3  # no graph is recorded or replayed after it
    losses_agree(run, train(miniature, tmp_path / "plain", **STEPS))
    (told,) = of_compiling(run)
    assert told.startswith("compile_mode: CUDA graphs failed: RuntimeError: graph recording observed")
    assert run.told("compile")[-1]["graphs"] > 0


def test_a_tensor_that_a_later_replay_has_overwritten_is_told_and_the_run_goes_on(
    miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch says so where the tensor is read, which is outside of any graph."""
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    run = train(miniature, tmp_path / "run", **REDUCED, gradient_accumulation_steps=2)
    losses_agree(run, train(miniature, tmp_path / "plain", **STEPS, gradient_accumulation_steps=2))
