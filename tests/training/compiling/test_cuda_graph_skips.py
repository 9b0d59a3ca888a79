"""Graphs that inductor runs without CUDA graphs are reported with its reason: by its own logger, without a GPU."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.cudagraph_utils import (
    PlaceholderInfo,
    check_multiple_devices_or_any_cpu_nodes,
    format_default_skip_message,
    get_mutation_stack_trace,
    log_cudagraph_skip_and_bump_counter,
)

from sd_scripts.training.compiling.cuda_graph_skips import CudaGraphSkips, reason_in_words
from tests.support.backends import backends
from tests.support.training import train


@pytest.fixture
def skips() -> Iterator[CudaGraphSkips]:
    with ExitStack() as run:
        listening = CudaGraphSkips()
        listening.listen(run)
        yield listening
    log_cudagraph_skip_and_bump_counter("skipping cudagraphs due to a later run in this process")
    assert listening.take() == []


TRACE = (
    '  File "/a/model.py", line 3, in forward\n    x = f(x)\n  File "/a/b/blocks.py", line 12, in f\n    x.mul_(2)\n'
)
CHANGED = PlaceholderInfo(name="x", stack_trace=None, users=[], mutating_use_stack_trace=TRACE)


def test_a_mutated_input_is_reported_once_with_its_line(skips: CudaGraphSkips) -> None:
    message = get_mutation_stack_trace([CHANGED], [0])
    for _ in range(2):
        log_cudagraph_skip_and_bump_counter(message)
    assert skips.take() == ["it changes inputs in place (1), at blocks.py:12"]
    assert skips.take() == []


def test_a_value_on_the_cpu_is_reported_as_inductor_passes_it_on(skips: CudaGraphSkips) -> None:
    x, sine, _ = torch.fx.symbolic_trace(Sine()).graph.nodes
    sine.meta["stack_trace"] = TRACE
    message = check_multiple_devices_or_any_cpu_nodes({torch.device("cpu"): x})
    log_cudagraph_skip_and_bump_counter(format_default_skip_message(str(message)))  # twice the same words, as it does
    assert skips.take() == ["x is on the CPU, at blocks.py:12"]


@pytest.mark.run
@pytest.mark.usefixtures("no_graphs")
def test_a_run_warns_once_of_each_reason(any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def skipping(graph: nn.Module, inputs: list[Tensor]) -> nn.Module:
        log_cudagraph_skip_and_bump_counter(get_mutation_stack_trace([CHANGED], [0]))
        return graph

    monkeypatch.setitem(backends(), "eager", skipping)
    made = train(any_miniature, tmp_path / "out", compile=True, compile_backend="eager", max_train_steps=1)
    assert [event["text"] for event in made.events_of("warning")] == [
        "compile_backend: a compiled graph runs without CUDA graphs, which is slower: it changes inputs in place (1), "
        "at blocks.py:12"
    ]
    assert made.events_of("compile")[-1]["cuda_graph_skips"] == 2


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("skipping cudagraphs due to ['mutated inputs']", "it changes inputs in place"),
        (
            "skipping cudagraphs due to disabling cudagraphs due to incompatible op aten.nonzero.default Found from "
            + TRACE,
            "the operation aten.nonzero.default cannot be recorded, at blocks.py:12",
        ),
        (
            "skipping cudagraphs due to graph with symbolic shapes inputs and "
            "config.triton.cudagraph_skip_dynamic_graphs=True.\n",
            "its shapes are dynamic",
        ),
        ("skipping cudagraphs due to control flow operator: torch.cond.", "control flow operator: torch.cond"),
    ],
)
def test_other_reasons_are_described_in_words(message: str, words: str) -> None:
    assert reason_in_words(message) == words
