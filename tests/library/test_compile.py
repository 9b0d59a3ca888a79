"""torch.compile on the miniature U-Net: the same numbers, the same keys, few graphs, and plain words when it fails."""

import argparse
import logging
import sys
from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from torch import Tensor, nn
from torch._dynamo.utils import counters

from sd_scripts.families.flux.model import FluxTransformer
from sd_scripts.families.sdxl.full_size import SDXL_CONFIG
from sd_scripts.families.sdxl.tiny import UNET
from sd_scripts.families.sdxl.unet import compile_targets, graph_kinds, predict, prepare_unet
from sd_scripts.library import compile_support
from sd_scripts.library.compile_utils import (
    KnownInputs,
    add_compile_arguments,
    compile_model,
    disable_linear_from_compile,
    inductor_options,
    maybe_uncompile_state_dict,
)
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.settings.family_options import each_option
from tests.support.swap import bare

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
NOTHING_MORE = CompileMoreOptions()
WIDTHS = (32, 64, 128)
SHALLOW: dict[str, Any] = {
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "block_out_channels": (32, 32),
    "attention_head_dim": (1, 1),
    "transformer_layers_per_block": (1, 1),
}
"""A level less than the miniature has, and every kind of block."""
TRACED = {"compile_backend": "eager"}
"""For decisions made before code is generated."""


pytestmark = [
    pytest.mark.deep,
    pytest.mark.usefixtures("no_graphs"),
]


def unet(**changes: Any) -> UNet2DConditionModel:
    torch.manual_seed(0)
    model = UNet2DConditionModel(**{**UNET, **changes}).train()
    prepare_unet(model)
    return model


def run(model: nn.Module) -> Tensor:
    """Mean of the prediction; `.grad` of the first and the last transformer's weights is filled."""
    g = torch.Generator().manual_seed(1)
    context, pooled = model.config["cross_attention_dim"], model.config["projection_class_embeddings_input_dim"] - 1536
    out = predict(
        model,
        torch.randn(2, 4, 16, 16, generator=g),
        torch.tensor([10, 900]),
        torch.randn(2, 77, context, generator=g),
        torch.randn(2, pooled, generator=g),
        torch.full((2, 6), 128.0),
    )
    loss = out.square().mean()
    loss.backward()
    return loss.detach()


def compiled(model: nn.Module, **options: Any) -> nn.Module:
    chosen = CompileOptions(**{"compile": True, "compile_backend": "aot_eager", **options})
    return compile_model(chosen, model, compile_targets(model), log_prefix="SDXL UNet", graphs_expected=32, static=True)


def test_add_compile_arguments_adds_the_six_flags_to_any_parser() -> None:
    parser = argparse.ArgumentParser()
    add_compile_arguments(parser)
    given = vars(parser.parse_args(["--compile", "--compile_mode", "max-autotune", "--compile_cache_size_limit", "64"]))
    assert set(given) == {o.name for o in each_option(CompileOptions)}
    assert (given["compile"], given["compile_mode"], given["compile_cache_size_limit"]) == (True, "max-autotune", 64)


def test_the_log_describes_how_it_compiles(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("sd_scripts"), "propagate", True)
    with caplog.at_level(logging.INFO, "sd_scripts"):
        compile_model(CompileOptions(compile=True), unet(), [], log_prefix="SDXL UNet")
        recorded = CompileOptions(compile=True, compile_mode="default")
        compile_model(recorded, unet(), [], log_prefix="SDXL UNet", chosen_mode="reduce-overhead")
    line = "Compiling SDXL UNet with torch.compile: backend=inductor, mode=default, dynamic=None, fullgraph=False"
    why = "mode=reduce-overhead (the step is recorded as one CUDA graph, its blocks compiled with mode=default)"
    assert {line, line.replace("mode=default", why)} == {each for each in caplog.messages if "Compiling" in each}


def test_compiled_and_eager_agree_and_the_keys_stay() -> None:
    eager, fast = unet(**SHALLOW), compiled(unet(**SHALLOW))
    keys = list(eager.state_dict())
    assert run(fast).item() == pytest.approx(run(eager).item(), rel=1e-5)  # sums in a different order, in float32
    for a, b in zip(eager.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-6)
    assert list(fast.state_dict()) == keys


def test_sdxls_blocks_share_fourteen_graphs_without_a_break() -> None:
    """The structure of SDXL base at small widths, trained as with a LoRA: the first blocks need no gradient."""
    model = unet(**{**SDXL_CONFIG, "block_out_channels": WIDTHS, "attention_head_dim": (2, 4, 4),
                    "transformer_layers_per_block": (1, 2, 3), "cross_attention_dim": 64,
                    "projection_class_embeddings_input_dim": 1536 + 32})  # fmt: skip
    model.requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".attentions." in name)
    assert graph_kinds(model) == {"ResnetBlock2D": 12, "BasicTransformerBlock": 2}
    run(compiled(model, compile_fullgraph=True, **TRACED))
    assert counters["stats"]["unique_graphs"] == 14
    assert not counters["graph_break"]


def test_swapped_blocks_keep_their_linears_eager_and_their_keys() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
    x = torch.randn(2, 4)
    wanted = model(x)
    disable_linear_from_compile(model)
    model.compile(backend="aot_eager")
    torch.testing.assert_close(model(x), wanted)
    assert counters["stats"]["calls_captured"] <= 1  # the GELU between them
    assert list(model.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_the_prefix_of_a_wrapped_module_is_dropped() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    model[0] = torch.compile(model[0], backend="aot_eager")
    assert list(maybe_uncompile_state_dict(model.state_dict())) == ["0.weight", "0.bias"]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_every_mode_becomes_options_that_this_pytorch_knows(mode: str) -> None:
    options = inductor_options(mode)
    assert options.items() >= torch._inductor.list_mode_options(mode).items()
    assert set(options) <= set(torch._inductor.list_options())


def test_missing_compile_requirements_are_reported_before_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    on = CompileOptions(compile=True)
    assert compile_support.problems(on, NOTHING_MORE, CPU) == []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (triton,) = compile_support.problems(on, NOTHING_MORE, CUDA)
    assert triton.startswith("compile: Triton is not installed; run `pip install triton`")
    assert compile_support.problems(CompileOptions(compile=False), NOTHING_MORE, CUDA) == []
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("VCINSTALLDIR", raising=False)
    problems = compile_support.problems(CompileOptions(compile=True, compile_dynamic="true"), NOTHING_MORE, CPU)
    assert any(problem.startswith("compile_dynamic: true needs the C++ compiler") for problem in problems)
    no_kernels = CompileOptions(compile=True, compile_backend="aot_eager", compile_dynamic="true")
    assert compile_support.problems(no_kernels, NOTHING_MORE, CPU) == []
    monkeypatch.setattr(torch, "__version__", "2.0.1+cu118")
    assert any(
        "PyTorch 2.0.1+cu118 is too old" in problem for problem in compile_support.problems(on, NOTHING_MORE, CPU)
    )


def learned(model: FluxTransformer, size: int) -> float:
    """The loss of FLUX.1 on images of size x size tokens, after a backward pass."""
    g = torch.Generator().manual_seed(1)
    noisy, states, pooled = (torch.randn(2, *shape, generator=g) for shape in ((size * size, 8), (5, 16), (16,)))
    loss = model(noisy, states, pooled, torch.tensor([0.2, 0.7]), torch.ones(2), (size, size)).square().mean()
    loss.backward()
    return float(loss)


def test_guards_are_spared_only_for_inputs_that_have_run_twice() -> None:
    """Sizes take turns, a new one comes late: each gives what the eager model gives, and only new sizes add graphs."""
    model, eager = bare(0, trainable=True), bare(0, trainable=True)
    blocks = [model.double_blocks, model.single_blocks]
    compile_model(CompileOptions(compile=True, compile_backend="eager"), model, blocks, static=True)
    known, seen = KnownInputs(), []
    for size in (4, 2, 4, 2, 4, 2, 3, 4, 3, 3, 2):
        with known({"noisy": torch.zeros(2, size * size, 8)}):
            loss = learned(model, size)
        assert loss == pytest.approx(learned(eager, size), rel=1e-5)
        seen.append(counters["stats"]["unique_graphs"])
    assert seen == [2, 4, 4, 4, 4, 4, 6, 6, 6, 6, 6]
    assert not counters["graph_break"]
