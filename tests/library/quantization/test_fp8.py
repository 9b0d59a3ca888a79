"""Weights in fp8: how much is lost, that gradients pass, and what of them is kept."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from sd_scripts.families.common.encoders.t5 import finish_t5
from sd_scripts.families.common.placing import checkpoint_gradients, placement_of
from sd_scripts.families.common.quantizing import quantize_encoder
from sd_scripts.families.flux.load import BLOCK_LISTS, T5_LINEAR
from sd_scripts.families.flux.model import FluxTransformer
from sd_scripts.library.quantization import fp8
from sd_scripts.library.quantization.fp8 import Fp8
from sd_scripts.library.quantization.quantized import add_, dequantized, frozen_linear
from sd_scripts.networks.adapters.lora import LoraLinear
from sd_scripts.networks.layers import Dropouts
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.settings.quantization import quantization_of
from tests.support.swap import CPU, SHAPE, run

CAN_MULTIPLY = fp8.compute_problem(CPU) is None
MODES = [False, pytest.param(True, marks=pytest.mark.skipif(not CAN_MULTIPLY, reason="this CPU cannot multiply fp8"))]


def linear(*, bias: bool = True, dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    torch.manual_seed(0)
    layer = nn.Linear(96, 64, bias=bias, dtype=dtype).requires_grad_(False)
    layer.weight.mul_(torch.logspace(-3, 2, 64)[:, None])  # rows of very different sizes
    return layer


def error(ours: Tensor, wanted: Tensor) -> float:
    return float((ours.detach().float() - wanted.detach().float()).norm() / wanted.detach().float().norm())


def through(layer: nn.Linear, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
    """Output, and the gradient of the input."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(2, 8, 96, generator=g).to(dtype).requires_grad_()
    y = frozen_linear(x, layer)
    y.backward(torch.randn(2, 8, 64, generator=g).to(dtype))
    assert x.grad is not None
    return y.detach(), x.grad


pytestmark = pytest.mark.usefixtures("no_graphs")


def test_a_row_is_rounded_to_three_bits_whatever_its_size() -> None:
    layer = linear(dtype=torch.float32)
    weight = layer.weight.clone()
    fp8.quantize_(layer, torch.float32)
    assert layer.weight.dtype == torch.float8_e4m3fn
    for ours, wanted in zip(dequantized(layer), weight, strict=True):
        assert error(ours, wanted) < 2**-4
    assert torch.equal(torch.frexp(layer.weight_scale).mantissa, torch.full((64, 1), 0.5))


def test_a_row_of_zeros_stays_zero() -> None:
    layer = linear(dtype=torch.float32)
    layer.weight[3] = 0
    fp8.quantize_(layer, torch.float32)
    assert not dequantized(layer)[3].any()
    assert dequantized(layer).isfinite().all()


def test_weights_stored_in_fp8_keep_their_values() -> None:
    layer = linear()
    layer.weight = nn.Parameter(layer.weight.to(torch.float8_e4m3fn), requires_grad=False)
    before = layer.weight.float()
    fp8.quantize_(layer, torch.bfloat16)
    assert torch.equal(dequantized(layer), before)


def scaled(*, bias: bool = True, dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    """Held as a file has it: one scale for all values, no power of two."""
    layer = linear(bias=bias, dtype=dtype)
    scale = layer.weight.abs().amax().float() / fp8.E4M3_MAX
    layer.weight = nn.Parameter((layer.weight.float() / scale).to(fp8.STORAGE), requires_grad=False)
    fp8.scale_(layer, scale, dtype)
    return layer


@pytest.mark.parametrize("compute", MODES)
def test_scales_of_a_file_are_applied_exactly(compute: bool) -> None:
    """In bf16 a scale would be off by up to 1/500, the same way for all outputs of a layer."""
    layer = scaled(bias=False)
    values = layer.weight
    wanted = nn.Linear(96, 64, bias=False, dtype=torch.float32).requires_grad_(False)
    wanted.weight.copy_(dequantized(layer))
    (y, _), (whole, _) = through(fp8.quantize_(layer, torch.bfloat16, compute=compute)), through(wanted, torch.float32)
    assert layer.weight is values, "nothing is rounded again"
    assert layer.weight_scale.shape == (64, 1)
    rows = y.float().flatten(0, 1).norm(dim=0) / whole.flatten(0, 1).norm(dim=0)
    assert float((rows - 1).mean().abs()) < (5e-3 if compute else 3e-4)


def test_a_stored_weight_is_changed_by_its_value() -> None:
    plain = linear()
    plain.weight = nn.Parameter(plain.weight.to(fp8.STORAGE), requires_grad=False)
    change = torch.randn(64, 96, generator=torch.Generator().manual_seed(2))
    for layer in (scaled(), *(fp8.quantize_(each, torch.bfloat16) for each in (linear(), plain))):
        held = layer.weight.float() * getattr(layer, "weight_scale", torch.ones(()))
        add_(layer, change)
        assert layer.weight.dtype == fp8.STORAGE
        assert error(dequantized(layer), held + change) < 2**-4


@pytest.mark.parametrize(
    "make", [lambda **how: fp8.quantize_(linear(**how), how["dtype"]), scaled], ids=["ours", "file"]
)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_stored_weights_compute_with_their_exact_values(make: Any, dtype: torch.dtype, bias: bool) -> None:
    layer = make(dtype=dtype, bias=bias)
    plain = nn.Linear(96, 64, bias=bias, dtype=dtype).requires_grad_(False)
    plain.weight.copy_(dequantized(layer))
    if bias:
        plain.bias.copy_(layer.bias)
    exact = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 1e-3}[dtype]  # sums are rounded once more
    for ours, wanted in zip(through(layer, dtype), through(plain, dtype), strict=True):
        assert ours.dtype == dtype
        assert error(ours, wanted) < exact


@pytest.mark.skipif(not CAN_MULTIPLY, reason="this CPU cannot multiply fp8")
@pytest.mark.parametrize("keep_transposed", [False, True])
def test_products_in_fp8_are_near_those_in_bf16(keep_transposed: bool) -> None:
    wanted = through(linear())
    layer = fp8.quantize_(linear(), torch.bfloat16, compute=True, keep_transposed=keep_transposed)
    assert (layer.weight_transposed is not None) == keep_transposed
    for ours, reference in zip(through(layer), wanted, strict=True):
        assert ours.dtype == torch.bfloat16
        assert error(ours, reference) < 0.05


@pytest.mark.parametrize("compute", MODES)
def test_backward_keeps_the_weight_in_fp8_only(compute: bool) -> None:
    layer = fp8.quantize_(linear(), torch.bfloat16, compute=compute)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        frozen_linear(torch.ones(4, 96, dtype=torch.bfloat16, requires_grad=True), layer)
    assert any(t.dtype == torch.float8_e4m3fn for t in kept)
    assert not [t for t in kept if t.numel() == layer.weight.numel() and t.element_size() > 1]


@pytest.mark.parametrize("compute", MODES)
def test_compiled_it_is_one_graph_that_keeps_the_weight_in_fp8_only(compute: bool) -> None:
    """The partitioner must neither keep a widened nor a reordered copy of the weight for backward."""
    layer = LoraLinear(fp8.quantize_(linear(), torch.bfloat16, compute=compute), 4, Dropouts())
    nn.init.normal_(layer.lora_down)
    nn.init.normal_(layer.lora_up)
    kept: list[Tensor] = []
    g = torch.Generator().manual_seed(1)
    x = torch.randn(8, 96, generator=g).bfloat16().requires_grad_()

    def block(x: Tensor) -> Tensor:
        return nn.functional.silu(layer(nn.functional.layer_norm(x, (96,))))

    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        wanted = block(x)
    assert torch.autograd.grad(wanted.sum(), x)[0].isfinite().all()
    kept.clear()
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = compiled(x)
    y.sum().backward()
    assert error(y, wanted) < 0.01
    assert counters["stats"]["unique_graphs"] == 1
    assert any(t.data_ptr() == layer.weight.data_ptr() for t in kept)
    copies = [t for t in kept if t.numel() == layer.weight.numel() and t.data_ptr() != layer.weight.data_ptr()]
    assert not copies


@pytest.mark.parametrize("compute", MODES)
def test_a_lora_trains_on_top(compute: bool) -> None:
    base = fp8.quantize_(linear(), torch.bfloat16, compute=compute)
    layer = LoraLinear(base, 4, Dropouts())
    assert layer.weight is base.weight
    assert layer.lora_down.dtype == torch.bfloat16
    nn.init.ones_(layer.lora_down)
    nn.init.zeros_(layer.lora_up)
    x = torch.randn(8, 96).bfloat16()
    assert torch.equal(layer(x), base(x))
    layer(x).sum().backward()
    assert layer.lora_up.grad is not None
    assert layer.lora_up.grad.any()


def test_autocast_decides_the_dtype() -> None:
    layer = fp8.quantize_(linear(dtype=torch.float32), torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert frozen_linear(torch.ones(4, 96), layer).dtype == torch.bfloat16


# The whole transformer


def placed(script_settings: Any, **options: Any) -> FluxTransformer:
    from sd_scripts.families.common.family import Components

    torch.manual_seed(0)
    model = FluxTransformer(SHAPE).requires_grad_(False)
    for p in model.parameters():
        nn.init.normal_(p, std=0.1)
    settings = script_settings(**options)
    BLOCK_LISTS.place(
        Components(denoiser=model, vae=nn.Identity(), text_encoders=[], tokenizers=[], source=""),
        placement_of(settings),
        CPU,
    )
    if options.get("gradient_checkpointing"):
        checkpoint_gradients(model, settings[TrainingOptions], settings.get(NetworkOptions))
    return model


@pytest.fixture
def flux_settings() -> Any:
    from sd_scripts.settings.settings import Settings
    from tests.support.scripts import FLUX_LORA

    return lambda **options: Settings(FLUX_LORA, options)


@torch.no_grad()
def test_a_model_in_fp8_is_near_itself(flux_settings: Any) -> None:
    plain, held = placed(flux_settings), placed(flux_settings, fp8_base_unet=True)
    assert error(run(held), run(plain)) < 0.1
    weights = [
        m.weight for b in (*held.double_blocks, *held.single_blocks) for m in b.modules() if type(m) is nn.Linear
    ]
    assert not weights
    assert held.img_in.weight.dtype == held.final_layer.linear.weight.dtype == torch.float32


@torch.no_grad()
def test_fp8_swapped_equals_fp8(flux_settings: Any) -> None:
    swapped = placed(flux_settings, fp8_base_unet=True, blocks_to_swap=6)
    assert torch.equal(run(swapped), run(placed(flux_settings, fp8_base_unet=True)))
    assert torch.equal(run(swapped, 3), run(placed(flux_settings, fp8_base=True), 3))


@pytest.mark.skipif(not CAN_MULTIPLY, reason="this CPU cannot multiply fp8")
def test_fp8_compute_alone_keeps_both_layouts_of_resident_weights(flux_settings: Any) -> None:
    fast = placed(flux_settings, fp8_compute=True, mixed_precision="bf16")
    spare = placed(flux_settings, fp8_compute=True, fp8_base_unet=True, mixed_precision="bf16")
    swapped = placed(flux_settings, fp8_compute=True, blocks_to_swap=6, mixed_precision="bf16")
    kept = [[b.linear1.weight_transposed is not None for b in model.single_blocks] for model in (fast, spare, swapped)]
    assert kept == [[True] * 8, [False] * 8, [False] * 8]
    assert fast.single_blocks[0].linear1.weight_format.compute
    assert fast.single_blocks[0].modulation.lin.weight.dtype == torch.float32  # one token: fp8 would only cost time
    assert not spare.single_blocks[0].modulation.lin.weight_format.compute
    with torch.no_grad():
        assert error(run(fast), run(placed(flux_settings))) < 0.2
        assert torch.equal(run(fast), run(swapped))


def test_t5_in_fp8_reads_nearly_the_same(flux_settings: Any) -> None:
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(0)
    config = T5Config(vocab_size=64, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2)
    config.feed_forward_proj, config.is_gated_act, config.dense_act_fn = "gated-gelu", True, "gelu_new"
    encoder = T5EncoderModel(config).eval().bfloat16()
    tokens = torch.arange(16)[None]
    with torch.no_grad():
        before = encoder(tokens).last_hidden_state
        finish_t5(encoder)
        quantize_encoder(encoder, Fp8(), torch.bfloat16, T5_LINEAR)
        after = encoder(tokens).last_hidden_state
    assert after.dtype == torch.bfloat16
    assert error(after, before) < 0.1
    assert encoder.encoder.block[0].layer[-1].DenseReluDense.wo.weight.dtype == torch.float8_e4m3fn
    chosen = [
        quantization_of(flux_settings(**options)).encoders
        for options in ({}, {"fp8_base": True}, {"fp8_base_unet": True})
    ]
    assert chosen == ["", "fp8", ""]
