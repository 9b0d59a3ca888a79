"""On a GPU: products with 8-bit and 4-bit weights match the CPU's, eager, compiled and recorded as CUDA graphs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sd_scripts.library.quantization.dequantizing import _kernel_on, dequantized_rows
from sd_scripts.library.quantization.int8 import Int8, multiplies, quantized_rows
from sd_scripts.library.quantization.nf4 import Nf4
from sd_scripts.library.quantization.quantized import (
    WeightFormat,
    dequantized,
    frozen_linear,
    quantize_,
    transposed,
    updated_linear,
)
from sd_scripts.networks.adapters.lora import LoraLinear
from sd_scripts.networks.layers import Dropouts
from tests.support.training import GRAPHS, equal, train

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: bitsandbytes' kernels, products in int8"),
    pytest.mark.usefixtures("no_graphs"),
]

CUDA = torch.device("cuda")
W8A8 = Int8(compute=True)
multiplies_int8 = pytest.mark.skipif(
    torch.cuda.is_available() and not multiplies(CUDA), reason="needs a GPU that multiplies int8: RTX 30 or newer"
)
FORMATS = [Int8(), pytest.param(W8A8, marks=multiplies_int8), Nf4()]
each_format = pytest.mark.parametrize("weight_format", FORMATS, ids=["int8_weight_only", "int8", "nf4"])
BF16_SUMS = 4e-3
"""Relative error of products that are summed in a different order and rounded to bf16."""


def linear(width: int, out: int) -> nn.Linear:
    g = torch.Generator().manual_seed(0)
    layer = nn.Linear(width, out, dtype=torch.bfloat16).requires_grad_(False)
    layer.weight.copy_(torch.randn(out, width, generator=g) * width**-0.5)
    layer.bias.copy_(torch.randn(out, generator=g))
    return layer


def error(ours: Tensor, wanted: Tensor) -> float:
    ours, wanted = ours.detach().double(), wanted.detach().double()
    return float((ours - wanted).norm() / wanted.norm())


def through(layer: nn.Linear, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Output, and the gradient of x."""
    x = x.clone().requires_grad_()
    y = frozen_linear(x, layer)
    return y.detach(), torch.autograd.grad(y, x, grad)[0]


@multiplies_int8
@pytest.mark.parametrize(("width", "out"), [(3072, 12288), (15360, 3072), (640, 5120), (2048, 1280)])
@pytest.mark.parametrize("tokens", [17, 77, 999, 4096])
def test_products_in_int8_lose_nothing_but_the_rounding_of_their_factors(tokens: int, width: int, out: int) -> None:
    """Sizes of FLUX.1 and SDXL, odd ones too."""
    torch.manual_seed(0)
    layer = quantize_(linear(width, out).to(CUDA), W8A8, torch.bfloat16)
    x, grad = (torch.randn(tokens, size, device=CUDA, dtype=torch.bfloat16) for size in (width, out))
    y, x_grad = through(layer, x, grad)
    rows, scale = quantized_rows(x)
    assert error(y, (rows.double() * scale) @ dequantized(layer).double().t() + layer.bias.double()) < BF16_SUMS
    rows, scale = quantized_rows(grad * layer.weight_scale.t())
    assert error(x_grad, (rows.double() * scale) @ layer.weight.double()) < BF16_SUMS


@multiplies_int8
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("rank", [4, 16, 20, 128, 160])
def test_the_update_of_a_lora_is_added_in_the_product_in_int8(rank: int, dtype: torch.dtype) -> None:
    """With widths that tiles do not divide, too; ranks beyond the kernel's are added apart."""
    torch.manual_seed(0)
    for tokens, width, out in ((999, 3072, 1280), (4096, 640, 2064), (77, 1296, 640)):
        layer = quantize_(linear(width, out).to(CUDA), W8A8, dtype)
        shapes = [(tokens, width), (rank, width), (out, rank)]
        inputs = [torch.randn(*shape, device=CUDA, dtype=dtype) / 8 for shape in shapes]
        x, down, up = (each.requires_grad_() for each in inputs)
        grad = torch.randn(tokens, out, device=CUDA, dtype=dtype) / 8
        y = updated_linear(x, layer, down, up)
        assert y is not None
        ours = torch.autograd.grad(y, inputs, grad)
        rows, scale = quantized_rows(x.detach())
        low, low_grad = x.double() @ down.double().t(), grad.double() @ up.double()
        weight = dequantized(layer).double()
        bounds = BF16_SUMS
        assert error(y, (rows.double() * scale) @ weight.t() + layer.bias.double() + low @ up.double().t()) < bounds
        rows, scale = quantized_rows(grad * layer.weight_scale.t())
        assert error(ours[0], (rows.double() * scale) @ layer.weight.double() + low_grad @ down.double()) < bounds
        assert error(ours[1], low_grad.t() @ x.double()) < bounds
        assert error(ours[2], grad.double().t() @ low) < bounds


@each_format
def test_a_gpu_quantizes_and_multiplies_as_a_cpu_does(weight_format: WeightFormat) -> None:
    ours, theirs = quantize_(linear(640, 1280).to(CUDA), weight_format, torch.bfloat16), linear(640, 1280)
    quantize_(theirs, weight_format, torch.bfloat16)
    for name, tensor in theirs.state_dict().items():
        here = ours.state_dict()[name].cpu()
        if tensor.is_floating_point():  # the last bit of a division may differ
            torch.testing.assert_close(here, tensor, rtol=1e-6, atol=0.0)
        else:
            assert (tensor == here).float().mean() > 0.999, name
    moved = quantize_(linear(640, 1280), weight_format, torch.bfloat16).to(CUDA)  # as text encoders are
    assert torch.equal(dequantized(moved).cpu(), dequantized(theirs))
    g = torch.Generator().manual_seed(1)
    x, grad = (torch.randn(2, 64, size, generator=g).bfloat16() for size in (640, 1280))
    on_gpu, on_cpu = through(moved, x.to(CUDA), grad.to(CUDA)), through(theirs, x, grad)
    for found, wanted in zip(on_gpu, on_cpu, strict=True):
        assert error(found.cpu(), wanted) < BF16_SUMS


@each_format
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_lora_on_top_computes_the_same_compiled_and_eager(weight_format: WeightFormat, mode: str) -> None:
    torch.manual_seed(0)
    layer = LoraLinear(quantize_(linear(640, 1280).to(CUDA), weight_format, torch.bfloat16), 16, Dropouts())
    for p in (layer.lora_down, layer.lora_up):
        p.data = torch.randn(p.shape, device=CUDA).mul(0.05).bfloat16()
    x, grad = (torch.randn(2, 512, size, device=CUDA, dtype=torch.bfloat16) for size in (640, 1280))
    x.requires_grad_()
    inputs = (x, layer.lora_down, layer.lora_up)

    def block(x: Tensor) -> Tensor:
        return nn.functional.silu(layer(nn.functional.layer_norm(x, (640,))))

    wanted = block(x)
    expected = torch.autograd.grad(wanted, inputs, grad)
    compiled = torch.compile(block, fullgraph=True, mode=mode)
    for _ in range(3):
        y = compiled(x)
        found = torch.autograd.grad(y, inputs, grad)
        # a factor that the compiler rounds otherwise can become the next of 255 steps
        assert error(y, wanted) < 0.01
        for ours, each in zip(found, expected, strict=True):
            assert error(ours, each) < 0.02


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn])
def test_the_kernel_dequantizes_every_byte_as_pytorch_does(stored: torch.dtype, dtype: torch.dtype) -> None:
    assert _kernel_on(CUDA) is not None
    for width in (256, 640, 15360):
        weight = torch.arange(256, dtype=torch.uint8).repeat(3, width)[:, :width].contiguous().view(stored)
        for scale in (None, torch.tensor([[1.0], [0.37], [2.0**-9]])):
            wanted = dequantized_rows(weight, scale, dtype)
            ours = dequantized_rows(weight.to(CUDA), scale if scale is None else scale.to(CUDA), dtype)
            assert torch.equal(ours.cpu().nan_to_num(7.0), wanted.nan_to_num(7.0))


def test_transposing_moves_every_byte_of_int8() -> None:
    for shape in ((1280, 640), (96, 80), (16, 4112)):
        weight = torch.randint(-127, 128, shape, device=CUDA, dtype=torch.int8)
        assert torch.equal(transposed(weight), weight.t())


@pytest.mark.parametrize("chosen", ["int8", "int8_weight_only", "nf4"])
def test_a_lora_of_each_family_trains_the_same_compiled_recorded_and_eager(
    chosen: str, each_miniature: Any, tmp_path: Path
) -> None:
    given = {
        **{"quantize_base": chosen, "quantize_text_encoders": "nf4", "mixed_precision": "bf16"},
        **{"max_train_steps": 10, "learning_rate": 1e-3, "deterministic": True},
    }
    ways: dict[str, dict[str, Any]] = {
        **{"eager": {"record_steps": False}, "recorded": {}, "compiled": {"compile": True, "record_steps": False}},
        "both": {"compile": True, "compile_mode": "reduce-overhead"},
    }
    runs = {way: train(each_miniature, tmp_path / way, **given, **options) for way, options in ways.items()}
    assert [run.status for run in runs.values()] == [0] * len(ways)
    assert runs["compiled"].losses == pytest.approx(runs["eager"].losses, rel=3e-2)
    told = [(event["graphs"], event["breaks"]) for event in runs["compiled"].events_of("compile") if "graphs" in event]
    assert told == [(GRAPHS[each_miniature.family], 0)]
    for plain, recorded in (("eager", "recorded"), ("compiled", "both")):
        assert runs[recorded].losses == runs[plain].losses
        assert equal(runs[recorded].tensors(), runs[plain].tensors())
        assert not [event for event in runs[recorded].events_of("warning") if "CUDA graph" in event["text"]]
