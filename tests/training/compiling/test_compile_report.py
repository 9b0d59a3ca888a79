"""The compiler's work is described in words: blocks, guards that failed, places where graphs broke."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters, get_compilation_metrics
from torch._inductor.utils import fresh_cache

from sd_scripts.families.flux.model import DoubleBlock
from sd_scripts.training.compiling import compile_report
from sd_scripts.training.compiling.compile_report import (
    breaks_in,
    explanations,
    graphs_in,
    in_words,
    places_of,
    progress_note,
)
from sd_scripts.training.compiling.compiler_log import Counts
from tests.support.data import make_folder
from tests.support.training import Run, train


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            "0/1: tensor 'hidden_states' size mismatch at index 1. expected 64, actual 128",
            "size of hidden_states is 128 instead of 64 (dimension 1)",
        ),
        (
            "0/0: tensor 'x' size mismatch at index 0. expected 4, actual 2. Guard failed on a parameter, consider ...",
            "size of x is 2 instead of 4 (dimension 0)",
        ),
        ("0/0: tensor 'x' requires_grad mismatch. expected requires_grad=0", "x needs a gradient, unlike before"),
        ("tensor 'x' requires_grad mismatch. expected requires_grad=1", "x needs no gradient, unlike before"),
        ("1/0: tensor 'x' dtype mismatch. expected Float, actual Half", "dtype of x is Half instead of Float"),
        ("1/0: tensor 'x' stride mismatch at index 0. expected 1, actual 2", "memory layout of x differs"),
        ("2/0: GLOBAL_STATE changed: grad_mode\nmore", "GLOBAL_STATE changed: grad_mode"),
        ("", ""),
    ],
)
def test_a_failed_guard_is_described_in_words(reason: str, words: str) -> None:
    assert in_words(reason) == words


class Block(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin()


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.sin()
        print("a graph cannot print")
        return x.cos()


def compiled(block: nn.Module, *inputs: Tensor) -> list[Any]:
    """Dynamo's metrics of a block that was compiled for these inputs."""
    before = len(get_compilation_metrics())
    block.compile(backend="eager", dynamic=False)
    for x in inputs:
        block(x)
    return list(get_compilation_metrics())[before:]


@pytest.mark.usefixtures("no_graphs")
def test_each_graph_has_its_block_and_the_reason_of_a_recompile() -> None:
    block = Block()
    first, second = graphs_in(compiled(block, torch.ones(2), torch.ones(3)), places_of([block]))
    assert (first.block, first.why) == ("Block", "")
    assert (second.block, second.why) == ("Block", "size of x is 3 instead of 2 (dimension 0)")
    told = compile_report.summary("step 2", [first, second])
    assert told.startswith("step 2: 2 graphs compiled in ")
    assert told.endswith(" s: 2 Block")


@pytest.mark.usefixtures("no_graphs")
def test_a_graph_break_is_reported_with_its_line_and_pytorchs_reason() -> None:
    metrics = compiled(Broken(), torch.ones(2))
    line = Broken.forward.__code__.co_firstlineno + 2
    assert breaks_in(metrics) == [f"test_compile_report.py:{line}"]
    (why,) = explanations(counters["graph_break"], ())
    assert "print" in why
    assert list(explanations(counters["graph_break"], counters["graph_break"])) == []


class Product(nn.Module):
    """Needs no kernel of inductor's own, which takes seconds to build."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ x


class Branching(nn.Module):
    """Inductor does not cache graphs with branches."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("squares", torch.tensor(True))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(self.squares, lambda x: x @ x, lambda x: x @ x @ x, (x,))


@pytest.mark.inductor
@pytest.mark.usefixtures("no_graphs")
def test_each_graph_reports_whether_it_came_from_inductors_cache() -> None:
    x = torch.ones(4, 4)

    def again() -> tuple[list[str | None], Counts]:
        torch._dynamo.reset()
        before, count = Counts.so_far(), len(get_compilation_metrics())
        for block in (Product(), Branching()):
            block.compile(backend="inductor", dynamic=False)
            block(x)
        graphs = graphs_in(list(get_compilation_metrics())[count:], {})
        return [graph.cache for graph in graphs], Counts.so_far() - before

    with fresh_cache():
        told, counts = again()
        assert told == ["miss", "bypass"]
        assert (counts.graphs, counts.cache_hits, counts.cache_misses, counts.cache_bypasses) == (2, 0, 1, 1)
        told, counts = again()
        assert told == ["hit", "bypass"]
        assert (counts.graphs, counts.cache_hits, counts.cache_misses, counts.cache_bypasses) == (2, 1, 0, 1)
        with torch._functorch.config.patch(enable_autograd_cache=False):
            assert again()[0] == ["kernels", "bypass"]


@pytest.mark.usefixtures("no_graphs")
def test_other_backends_report_no_cache() -> None:
    (graph,) = graphs_in(compiled(Block(), torch.ones(5)), {})
    assert graph.cache is None


@pytest.mark.parametrize(
    ("graphs", "cached", "expected", "words"),
    [
        (0, 0, 14, ""),
        (1, 0, None, "1 graph so far"),
        (6, 5, 14, "6 of about 14 graphs (5 from the cache)"),
        (15, 0, 14, "15 graphs so far"),
    ],
)
def test_progress_counts_graphs_against_the_plan(graphs: int, cached: int, expected: int | None, words: str) -> None:
    assert progress_note(graphs, cached, expected) == words


def test_progress_continues_while_backward_passes_are_compiled() -> None:
    assert progress_note(14, 0, 14, 3) == "14 of about 14 graphs, backward pass 3 of 14"
    assert progress_note(14, 5, 14, 9) == "14 of about 14 graphs (5 from the cache), backward pass 9 of 9"
    assert progress_note(2, 2, None, 1) == "2 graphs so far (2 from the cache), backward pass 1 of 1"


TRACED: dict[str, Any] = {"compile": True, "compile_backend": "eager", "network_args": ["train_blocks=single"]}
"""Double blocks without LoRA are traced in half the time."""


@pytest.mark.run
@pytest.mark.usefixtures("no_graphs")
def test_a_run_reports_the_size_that_made_it_recompile(any_miniature: Any, tmp_path: Any) -> None:
    make_folder(tmp_path / "data" / "1_cat", [(128, 128), (128, 64)])
    values = {**TRACED, "resolution": "128,128", "max_train_steps": 2}
    made: Run = train(any_miniature, tmp_path / "out", train_data_dir=tmp_path / "data", **values)
    first, second = made.events_of("compile")
    shapes = [event["shape"] for event in made.events_of("step")]
    assert first["text"].startswith(f"step 1 ({shapes[0]}): 2 graphs compiled in ")
    assert second["text"].startswith(f"step 2 ({shapes[1]}): 2 graphs compiled in ")
    assert second["text"].endswith(": 1 DoubleBlock, 1 SingleBlock")
    assert all(graph["why"] == "" for graph in first["compiled"])
    assert all(graph["why"].startswith("size of ") for graph in second["compiled"])


@pytest.mark.run
@pytest.mark.usefixtures("no_graphs")
def test_a_run_warns_once_of_each_place_where_a_graph_breaks(
    any_miniature: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = DoubleBlock.forward

    def broken(self: DoubleBlock, *args: Any, **more: Any) -> Any:
        print("a graph cannot print")
        return whole(self, *args, **more)

    monkeypatch.setattr(DoubleBlock, "forward", broken)
    made = train(any_miniature, tmp_path / "out", **TRACED, max_train_steps=2)
    line = broken.__code__.co_firstlineno + 1
    (told,) = [event["text"] for event in made.events_of("warning") if "a graph ends" in event["text"]]
    assert told.startswith(
        f"compile: a graph ends at test_compile_report.py:{line}, and the code there runs uncompiled"
    )
    assert "print" in told
    assert made.events_of("compile")[-1]["breaks"] > 0
