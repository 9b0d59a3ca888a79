"""On a GPU: whatever happens to the CUDA graphs of blocks, the run continues, with the losses of an uncompiled one.

Blocks have graphs of their own where the step cannot be recorded as a whole, as with another program's network.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from sd_scripts.families.qwen_image.model import QwenImageParams, QwenImageTransformerBlock, rope_table
from sd_scripts.library.compile_utils import inductor_options
from tests.support.training import Run, train

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: CUDA graphs"),
    pytest.mark.usefixtures("no_graphs"),
]

STEPS: dict[str, Any] = {"max_train_steps": 8, "mixed_precision": "no"}
"""The first run of a graph allocates, the second is recorded, later ones are replayed. In float32, where the rounding
of compiled and eager kernels does not grow over the steps."""
OTHER = {"network_module": "tests.support.networks.foreign_network"}
REDUCED = {**STEPS, **OTHER, "compile": True, "compile_mode": "reduce-overhead"}


def of_compiling(run: Run) -> list[str]:
    """Warnings, but for the one that explains why blocks have graphs of their own."""
    told = [event["text"] for event in run.events_of("warning") if "compile" in event["text"]]
    return [text for text in told if "a step cannot be recorded as a CUDA graph with network_module" not in text]


def losses_agree(run: Run, plain: Run) -> None:
    assert run.status == plain.status == 0
    assert run.losses == pytest.approx(plain.losses, rel=0.01)


@pytest.mark.parametrize("tokens", [6889, 6912])
def test_modulations_of_many_tokens_train_like_eager_code(tokens: int) -> None:
    """Their gradients are sums over all tokens. Inductor's kernel for sums over rows and columns
    together (mix_order_reduction) gets those of a Qwen-Image of 1328x1328, 6,889 tokens, wrong by more than half."""
    torch.manual_seed(0)
    params = QwenImageParams()
    block = QwenImageTransformerBlock(params).to("cuda", torch.bfloat16).requires_grad_(False)
    weights = [block.img_mod[1].weight.requires_grad_(), block.txt_mod[1].weight.requires_grad_()]
    rope = rope_table(params, ((1, tokens),), 128, torch.device("cuda"))
    shapes = ((1, tokens, params.width), (1, 128, params.width), (1, params.width))
    img, txt, vec = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes)
    found = []
    for run in (torch.compile(block, options=inductor_options("default")), block):
        img_out, txt_out = run(img.requires_grad_(), txt.requires_grad_(), vec, rope)
        torch.autograd.backward((img_out, txt_out), (img.detach(), txt.detach()))
        found.append([weight.grad for weight in weights])
        for weight in weights:
            weight.grad = None
    for ours, eager in zip(*found, strict=True):
        assert ours is not None
        assert eager is not None
        assert ((ours - eager).norm() / eager.norm()).item() < 3e-2


def test_cuda_graphs_replay_the_blocks(miniature: Any, tmp_path: Path) -> None:
    run = train(miniature, tmp_path / "run", **REDUCED)
    losses_agree(run, train(miniature, tmp_path / "plain", **STEPS, **OTHER))
    assert of_compiling(run) == []
    assert run.events_of("compile")[-1]["graphs"] > 0


@pytest.mark.parametrize("what", ["record_function", "execute_node"])
def test_a_cuda_graph_error_is_reported_and_the_run_continues_in_the_default_mode(
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
    losses_agree(run, train(miniature, tmp_path / "plain", **STEPS, **OTHER))
    (told,) = of_compiling(run)
    assert told.startswith("compile_mode: CUDA graphs failed: RuntimeError: graph recording observed")
    assert run.events_of("compile")[-1]["graphs"] > 0


def test_an_overwritten_replay_output_is_reported_and_the_run_continues(
    miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch reports it where the tensor is read, which is outside of any graph."""
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    run = train(miniature, tmp_path / "run", **REDUCED, gradient_accumulation_steps=2)
    losses_agree(run, train(miniature, tmp_path / "plain", **STEPS, **OTHER, gradient_accumulation_steps=2))
