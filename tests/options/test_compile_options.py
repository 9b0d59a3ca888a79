"""Options of inductor given as key=value: over the mode, checked before loading, asked for CUDA graphs."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sd_scripts.library import compile_support
from sd_scripts.library.compile_utils import compile_model, inductor_option_problems, inductor_options
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.settings.recording import uses_cuda_graphs

GRAPHS = "triton.cudagraphs"


class Block(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def test_options_override_the_modes_and_our_own() -> None:
    given = [f"{GRAPHS}=False", "max_pointwise_cat_inputs=8", "shape_padding = true"]
    options = inductor_options("max-autotune", given)
    changed = {GRAPHS: False, "max_pointwise_cat_inputs": 8, "shape_padding": True}
    assert options == inductor_options("max-autotune") | changed


@pytest.mark.usefixtures("no_graphs")
def test_the_compiler_gets_the_mode_and_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[dict[str, Any]] = []

    def compile_fx(graph: torch.fx.GraphModule, inputs: Any, **how: Any) -> Any:
        got.append(how["config_patches"])
        return graph.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    block = Block()
    given = CompileOptions(compile=True, compile_mode="reduce-overhead", compile_options=["shape_padding=False"])
    compile_model(given, block, [[block]])
    block(torch.ones(2, 4))
    assert got == [inductor_options("reduce-overhead") | {"shape_padding": False}]
    assert got[0][GRAPHS] is True


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ("max_autotun=True", "inductor has no option max_autotun. Did you mean max_autotune?"),
        ("cudagraphs=True", f"inductor has no option cudagraphs. Did you mean {GRAPHS}?"),
        ("zzzz=1", "inductor has no option zzzz. torch._inductor.list_options() names all"),
        ("shape_padding=1", "shape_padding=1 must be true or false"),
        ("max_epilogue_benchmarked_choices=True", "max_epilogue_benchmarked_choices=True must be a whole number"),
        ("cpu_gpu_bw='fast'", "cpu_gpu_bw='fast' must be a number"),
        ("bundle_triton_into_fx_graph_cache=3", "bundle_triton_into_fx_graph_cache=3 must be true or false or None"),
        (
            "max_autotune_gemm_search_space='ALL'",
            "max_autotune_gemm_search_space='ALL' must be one of 'DEFAULT', 'EXHAUSTIVE'",
        ),
    ],
)
def test_options_inductor_would_refuse_are_reported_with_a_remedy(item: str, problem: str) -> None:
    assert inductor_option_problems([item]) == [f"compile_options: {problem}"]


def test_options_inductor_accepts_are_fine_and_a_whole_number_becomes_a_float() -> None:
    items = ["cpu_gpu_bw=60", "max_autotune_gemm_backends='ATEN'", "fx_graph_remote_cache=None", "rocm.arch=['gfx942']"]
    assert inductor_option_problems(items) == []
    assert type(inductor_options("default", items)["cpu_gpu_bw"]) is float


def test_options_need_the_inductor_backend() -> None:
    def told(more: CompileMoreOptions, **values: Any) -> list[str]:
        options = CompileOptions(compile_options=["max_autotun=True"], **values)
        return compile_support.problems(options, more, torch.device("cpu"))

    assert told(CompileMoreOptions()) == []
    assert told(CompileMoreOptions(), compile=True, compile_backend="eager") == []  # its own check reports it
    assert len(told(CompileMoreOptions(), compile=True)) == len(told(CompileMoreOptions(compile_vae=True))) == 1


@pytest.mark.parametrize(
    ("values", "chosen_by", "without"),
    [
        ({}, "", {}),
        ({"compile_mode": "max-autotune"}, "compile_mode", {"compile_mode": "max-autotune-no-cudagraphs"}),
        ({"compile_options": [f"{GRAPHS} = true", "a=1"]}, "compile_options", {"compile_options": ["a=1"]}),
        (
            {"compile_mode": "reduce-overhead", "compile_options": [f"{GRAPHS}=True"]},
            "compile_options",
            {"compile_mode": "default", "compile_options": []},
        ),
        ({"compile_mode": "reduce-overhead", "compile_options": [f"{GRAPHS}=False"]}, "", {}),
        ({"compile_backend": "aot_eager", "compile_options": [f"{GRAPHS}=True"]}, "", {}),
    ],
)
def test_cuda_graphs_are_known_by_mode_and_by_option(
    values: dict[str, Any], chosen_by: str, without: dict[str, Any]
) -> None:
    options = CompileOptions(compile=True, **values)
    assert options.cuda_graphs_from == chosen_by
    assert uses_cuda_graphs(options) is bool(chosen_by)
    assert options.without_cuda_graphs() == CompileOptions(compile=True, **{**values, **without})


def test_the_backend_cudagraphs_requires_cuda_graphs() -> None:
    options = CompileOptions(compile=True, compile_backend="cudagraphs")
    assert uses_cuda_graphs(options)
    assert options.without_cuda_graphs() is None
