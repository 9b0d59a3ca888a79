"""Frozen weights in 8 and 4 bits: how exact their products are, which tensors are kept, and compatible options."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from benchmarks.full_size import full_size
from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.common.encoders.t5 import finish_t5
from sd_scripts.families.common.family import Components, family_of
from sd_scripts.families.common.placing import placement_of
from sd_scripts.families.common.quantizing import FORMATS, can_be_quantized, quantize_encoder
from sd_scripts.families.flux.load import T5_LINEAR
from sd_scripts.families.flux.model import FluxTransformer
from sd_scripts.families.sdxl.unet import predict
from sd_scripts.library.quantization.fp8 import Fp8, compute_problem
from sd_scripts.library.quantization.int8 import FEWEST_ROWS, Int8, multiplies, quantized_rows
from sd_scripts.library.quantization.nf4 import Nf4
from sd_scripts.library.quantization.quantized import (
    WeightFormat,
    add_,
    dequantized,
    format_of,
    frozen_linear,
    quantize_,
    updated_linear,
)
from sd_scripts.networks.adapters.lora import LoraLinear
from sd_scripts.networks.layers import Dropouts
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.planning.memory import HALF
from sd_scripts.settings.checks.between import remarks_between
from sd_scripts.settings.settings import Settings
from tests.support.scripts import FLUX_LORA, SDXL_LORA
from tests.support.swap import CPU, SHAPE, run

IN, OUT = 256, 128
W8A8 = Int8(compute=True)
ERRORS: dict[str, tuple[WeightFormat, float, float]] = {
    "fp8": (Fp8(), 0.03, 0.03),
    "int8_weight_only": (Int8(), 0.008, 0.008),
    "int8": (W8A8, 0.01, 0.01),
    "nf4": (Nf4(), 0.1, 0.1),
}
"""Format, and the largest relative errors of a product and of the input's gradient, of normally distributed values."""
each_format = pytest.mark.parametrize("weight_format", [Fp8(), Int8(), W8A8, Nf4()], ids=list(ERRORS))

pytestmark = [
    pytest.mark.run,
    pytest.mark.usefixtures("no_graphs"),
]


def linear(*, bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(0)
    layer = nn.Linear(IN, OUT, bias=bias, dtype=dtype).requires_grad_(False)
    nn.init.normal_(layer.weight, std=0.02)
    return layer


def error(ours: Tensor, wanted: Tensor) -> float:
    return float((ours.detach().double() - wanted.detach().double()).norm() / wanted.detach().double().norm())


def through(layer: nn.Linear, dtype: torch.dtype = torch.float32, rows: int = 64) -> tuple[Tensor, Tensor]:
    """Output, and the gradient of the input."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(2, rows // 2, IN, generator=g).to(dtype).requires_grad_()
    y = frozen_linear(x, layer)
    y.backward(torch.randn(y.shape, generator=g).to(dtype))
    assert x.grad is not None
    return y.detach(), x.grad


def test_products_are_as_exact_as_their_formats() -> None:
    assert multiplies(CPU)
    exact, wrong = through(linear(bias=False)), {}
    for name, (weight_format, *limits) in ERRORS.items():
        found = [
            error(*pair)
            for pair in zip(through(quantize_(linear(bias=False), weight_format, torch.float32)), exact, strict=True)
        ]
        if any(not limit / 2 < each < limit for each, limit in zip(found, limits, strict=True)):
            wrong[name] = found
    assert wrong == {}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weight_format", [Int8(), Nf4()], ids=["int8", "nf4"])
def test_quantized_weights_compute_with_their_values(
    weight_format: WeightFormat, dtype: torch.dtype, bias: bool
) -> None:
    layer, plain = quantize_(linear(bias=bias, dtype=dtype), weight_format, dtype), linear(bias=bias, dtype=dtype)
    plain.weight.copy_(dequantized(layer))
    for ours, wanted in zip(through(layer, dtype), through(plain, dtype), strict=True):
        assert ours.dtype == dtype
        assert torch.equal(ours, wanted)


def test_products_in_int8_lose_nothing_but_the_rounding_of_their_factors() -> None:
    layer = quantize_(linear(), W8A8, torch.float32)
    g = torch.Generator().manual_seed(1)
    x, grad = torch.randn(64, IN, generator=g, requires_grad=True), torch.randn(64, OUT, generator=g)
    y = frozen_linear(x, layer)
    y.backward(grad)
    weight = layer.weight.double()
    rows, scale = quantized_rows(x.detach())
    assert rows.abs().max() == 127
    assert error(y, (rows.double() * scale) @ (weight * layer.weight_scale).t() + layer.bias.double()) < 1e-6
    rows, scale = quantized_rows(grad * layer.weight_scale.t())
    assert x.grad is not None
    assert error(x.grad, (rows.double() * scale) @ weight) < 1e-6


def test_the_update_of_a_lora_is_added_in_the_product_in_int8() -> None:
    layer = quantize_(linear(), W8A8, torch.float32)
    g = torch.Generator().manual_seed(1)
    shapes = [(3, 20, IN), (4, IN), (OUT, 4)]
    inputs = [torch.randn(*shape, generator=g, requires_grad=True) for shape in shapes]
    x, down, up = inputs
    apart = frozen_linear(x, layer) + (x @ down.t()) @ up.t()
    together = updated_linear(x, layer, down, up)
    assert together is not None
    grad = torch.randn(apart.shape, generator=g)
    torch.testing.assert_close(together, apart, rtol=1e-5, atol=1e-5)
    for ours, wanted in zip(*(torch.autograd.grad(y, inputs, grad) for y in (together, apart)), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-4)


def test_other_formats_and_few_rows_have_no_kernel_with_the_update_of_a_lora() -> None:
    down, up = torch.ones(4, IN), torch.ones(OUT, 4)
    for weight_format in (Int8(), Nf4(), Fp8()):
        layer = quantize_(linear(), weight_format, torch.float32)
        assert updated_linear(torch.ones(32, IN), layer, down, up) is None
    assert updated_linear(torch.ones(32, IN), linear(), down, up) is None
    layer = quantize_(linear(), W8A8, torch.float32)
    assert updated_linear(torch.ones(FEWEST_ROWS - 1, IN), layer, down, up) is None
    assert updated_linear(torch.ones(32, IN, dtype=torch.bfloat16), layer, down, up) is None


def test_few_rows_are_not_multiplied_in_int8() -> None:
    few, exact = FEWEST_ROWS - 1, quantize_(linear(), Int8(), torch.float32)
    layer = quantize_(linear(), W8A8, torch.float32)
    assert torch.equal(through(layer, rows=few)[0], through(exact, rows=few)[0])
    assert not torch.equal(through(layer, rows=few + 2)[0], through(exact, rows=few + 2)[0])


def test_rows_that_are_not_finite_stay_so_in_int8() -> None:
    layer, x = quantize_(linear(), W8A8, torch.float32), torch.ones(32, IN)
    x[3, 5], x[4, 5], x[7] = torch.nan, torch.inf, 0.0
    finite = frozen_linear(x, layer).isfinite().all(dim=1)
    assert (~finite).nonzero().flatten().tolist() == [3, 4]


def test_a_quantized_weight_takes_the_planned_bytes() -> None:
    from sd_scripts.settings.quantization import bytes_of

    for name, weight_format in FORMATS.items():
        layer = quantize_(linear(bias=False), weight_format, torch.bfloat16)
        held = sum(tensor.numel() * tensor.element_size() for tensor in layer.state_dict().values())
        assert held == bytes_of(name, IN * OUT, OUT), name
        assert held < 0.52 * IN * OUT * HALF


@each_format
def test_a_quantized_weight_is_changed_by_its_value(weight_format: WeightFormat) -> None:
    layer = quantize_(linear(), weight_format, torch.bfloat16)
    wanted = dequantized(layer) + torch.full((OUT, IN), 0.02)
    add_(layer, torch.full((OUT, IN), 0.02))
    assert format_of(layer) is weight_format
    assert error(dequantized(layer), wanted) < 0.1


@each_format
def test_a_file_in_fp8_can_be_stored_differently(weight_format: WeightFormat) -> None:
    """A weight of a file that has no scales, and one that has."""
    from sd_scripts.library.quantization import fp8

    for scale in (None, torch.tensor(0.5)):
        layer = linear()
        layer.weight = nn.Parameter(layer.weight.to(fp8.STORAGE), requires_grad=False)
        wanted = layer.weight.float() * (1.0 if scale is None else scale)
        if scale is not None:
            fp8.scale_(layer, scale, torch.float32)
        quantize_(layer, weight_format, torch.float32)
        assert error(dequantized(layer), wanted) < 0.1
        assert set(dict(layer.named_buffers())) <= {*weight_format.buffers, *weight_format.derived}


@each_format
def test_backward_keeps_quantized_weights_only(weight_format: WeightFormat) -> None:
    layer, kept = quantize_(linear(dtype=torch.bfloat16), weight_format, torch.bfloat16), list[Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        frozen_linear(torch.ones(32, IN, dtype=torch.bfloat16, requires_grad=True), layer)
    assert any(t.data_ptr() == layer.weight.data_ptr() for t in kept)
    assert sum(t.nbytes for t in kept) <= IN * OUT + 4 * OUT


@each_format
def test_a_lora_on_top_compiles_to_one_graph_that_keeps_quantized_weights_only(weight_format: WeightFormat) -> None:
    layer = LoraLinear(quantize_(linear(dtype=torch.bfloat16), weight_format, torch.bfloat16), 4, Dropouts())
    nn.init.normal_(layer.lora_down, std=0.1)
    nn.init.normal_(layer.lora_up, std=0.1)
    x = torch.randn(32, IN, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_()
    inputs = (x, layer.lora_down, layer.lora_up)

    def block(x: Tensor) -> Tensor:
        return nn.functional.silu(layer(nn.functional.layer_norm(x, (IN,))))

    wanted = block(x)
    expected, kept = torch.autograd.grad(wanted.sum(), inputs), list[Tensor]()
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = compiled(x)
    assert error(y, wanted) < 0.01
    for ours, each in zip(torch.autograd.grad(y.sum(), inputs), expected, strict=True):
        assert error(ours, each) < 0.02
    assert counters["stats"]["unique_graphs"] == 1
    copies = [t for t in kept if t.shape[-2:] == (OUT, IN) and t.data_ptr() != layer.weight.data_ptr()]
    assert not copies


@pytest.mark.parametrize(
    "weight_format", [Fp8(), Fp8(compute=True), Int8(), W8A8, Nf4()], ids=["fp8", "fp8_compute", *list(ERRORS)[1:]]
)
def test_one_graph_serves_all_sizes_with_dynamic_shapes(weight_format: WeightFormat) -> None:
    if weight_format == Fp8(compute=True) and compute_problem(CPU):
        pytest.skip("this PyTorch does not multiply in fp8 on a CPU")
    layer = quantize_(linear(dtype=torch.bfloat16), weight_format, torch.bfloat16)
    compiled = torch.compile(lambda x: nn.functional.silu(layer(x)), backend="aot_eager", dynamic=True, fullgraph=True)
    for rows in (64, 100, 160):
        x = torch.randn(2, rows, IN, dtype=torch.bfloat16).requires_grad_()
        compiled(x).sum().backward()
    assert counters["stats"]["unique_graphs"] == 1


@each_format
def test_autocast_decides_the_dtype(weight_format: WeightFormat) -> None:
    layer = quantize_(linear(), weight_format, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert frozen_linear(torch.ones(32, IN), layer).dtype == torch.bfloat16


def test_rows_of_any_width_are_read_back_from_nf4() -> None:
    """bitsandbytes on a CPU takes each row for the begin of a block, if it may."""
    torch.manual_seed(0)
    layer = nn.Linear(48, 80).requires_grad_(False)
    weight = layer.weight.mul_(torch.logspace(-2, 1, 80)[:, None]).clone()
    quantize_(layer, Nf4(), torch.float32)
    assert layer.weight.dtype == torch.uint8
    assert error(dequantized(layer), weight) < 0.12


@pytest.mark.parametrize("weight_format", [None, Int8(), Nf4()], ids=["unquantized", "int8", "nf4"])
def test_t5_reads_the_same_in_fp16_as_in_float32(weight_format: WeightFormat | None) -> None:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(vocab_size=64, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2)
    config.feed_forward_proj, config.is_gated_act, config.dense_act_fn = "gated-gelu", True, "gelu_new"

    def hidden(dtype: torch.dtype) -> Tensor:
        torch.manual_seed(0)
        encoder = T5EncoderModel(config).eval().half().requires_grad_(False)
        make_large(encoder)
        encoder.to(dtype)
        finish_t5(encoder)
        if weight_format:
            quantize_encoder(encoder, weight_format, dtype, T5_LINEAR)
        found: Tensor = encoder(torch.arange(16)[None]).last_hidden_state
        return found

    assert error(hidden(torch.float16), hidden(torch.float32)) < 0.01


def make_large(t5: Any) -> None:
    """Let the outputs of T5's MLPs exceed the largest number of fp16, which the library would clamp."""
    for block in t5.encoder.block:
        dense = block.layer[1].DenseReluDense
        for layer, factor in ((dense.wi_0, 30), (dense.wi_1, 30), (dense.wo, 1e4)):
            layer.weight.mul_(factor)


def test_only_matrices_of_fitting_sizes_are_quantized() -> None:
    pattern = re.compile(r"a\.weight")
    for shape, name, wanted in (
        ((32, 16), "a.weight", True),
        ((32, 24), "a.weight", False),
        ((32, 16, 1, 1), "a.weight", False),
        ((32, 16), "b.weight", False),
    ):
        assert can_be_quantized(pattern, name, torch.zeros(shape)) is wanted
    assert not can_be_quantized(pattern, "a.weight", torch.zeros(32, 16).to(torch.float8_e5m2))


# Whole denoisers


def flux(**options: Any) -> FluxTransformer:
    torch.manual_seed(0)
    model = FluxTransformer(SHAPE).requires_grad_(False)
    for p in model.parameters():
        nn.init.normal_(p, std=0.1)
    return placed("flux", model, **options)


def sdxl(**options: Any) -> nn.Module:
    from diffusers import UNet2DConditionModel

    from sd_scripts.families.sdxl.tiny import UNET
    from sd_scripts.families.sdxl.unet import prepare_unet

    torch.manual_seed(0)
    return placed("sdxl", prepare_unet(UNet2DConditionModel(**UNET).requires_grad_(False)), **options)


def placed(family: str, model: Any, **options: Any) -> Any:
    settings = Settings(FLUX_LORA if family == "flux" else SDXL_LORA, options)
    components = Components(denoiser=model, vae=nn.Identity(), text_encoders=[], tokenizers=[], source="")
    family_of(family).place(components, placement_of(settings), CPU)
    if options.get("gradient_checkpointing"):
        family_of(family).checkpoint_gradients(model, settings[TrainingOptions], settings.get(NetworkOptions))
    return model


@pytest.mark.parametrize("family", ["sdxl", "flux"])
def test_the_linears_of_all_blocks_are_quantized_and_no_other_layer(family: str) -> None:
    model, pattern = {"sdxl": sdxl, "flux": flux}[family](quantize_base="nf4"), family_of(family).layouts["denoiser"]
    plain = {"sdxl": sdxl, "flux": flux}[family]()
    assert pattern.quantizable
    wanted = {
        name for name, tensor in plain.state_dict().items() if can_be_quantized(pattern.quantizable, name, tensor)
    }
    assert len(wanted) > 20
    assert {f"{name}.weight" for name, part in model.named_modules() if format_of(part)} == wanted


@pytest.mark.parametrize("quantized", [name for name in FORMATS if name != "fp8"])
def test_swapped_and_checkpointed_blocks_match_resident_ones(quantized: str) -> None:
    """The gradient of an input, by which all blocks multiply in backward too."""
    results = []
    for more in ({}, {"blocks_to_swap": 6}, {"blocks_to_swap": 6, "gradient_checkpointing": True}):
        model = flux(quantize_base=quantized, **more)
        model.train().img_in.weight.requires_grad_()
        out = run(model)
        out.square().sum().backward()
        results.append((out.detach(), model.img_in.weight.grad))
    for ours in results[1:]:
        assert torch.equal(ours[0], results[0][0])
        assert torch.equal(ours[1], results[0][1])


@pytest.mark.parametrize("quantized", ["int8", "nf4"])
def test_swapped_blocks_of_a_u_net_match_resident_ones(quantized: str) -> None:
    """Nine of the miniature's eleven transformer blocks, in both directions."""
    g = torch.Generator().manual_seed(2)
    context, pooled = (torch.randn(size, generator=g) for size in ((2, 9, 192), (2, 128)))
    noisy, sizes = torch.randn(2, 4, 16, 16, generator=g), torch.full((2, 6), 64)
    results = []
    for more in ({}, {"blocks_to_swap": 9}, {"blocks_to_swap": 9, "gradient_checkpointing": True}):
        unet = sdxl(quantize_base=quantized, **more).train()
        unet.conv_in.weight.requires_grad_()
        out = predict(unet, noisy, torch.tensor([5, 700]), context, pooled, sizes)
        out.square().sum().backward()
        results.append((out.detach(), unet.conv_in.weight.grad))
    for ours in results[1:]:
        assert torch.equal(ours[0], results[0][0])
        assert torch.equal(ours[1], results[0][1])


@pytest.mark.skipif(bool(compute_problem(CPU)), reason="this PyTorch does not multiply in fp8 on a CPU")
def test_layers_of_few_tokens_do_not_multiply_in_8_bits() -> None:
    def computing(**options: Any) -> dict[str, bool]:
        """Whether they do, by the names of layers that are quantized."""
        parts = sdxl(mixed_precision="bf16", **options).named_modules()
        return {name: found.compute for name, part in parts if isinstance(found := format_of(part), Fp8 | Int8)}

    for options in ({"quantize_base": "int8"}, {"quantize_base": "fp8", "fp8_compute": True}):
        found = computing(**options)
        assert {name for name, fast in found.items() if not fast} == {name for name in found if "time_emb" in name}
        assert 0 < sum(not fast for fast in found.values()) < len(found) / 2
    assert all(computing(fp8_compute=True).values()), "the others stay unchanged"
    assert not any(computing(fp8_base=True).values())


@torch.no_grad()
def test_a_quantized_denoiser_is_near_itself() -> None:
    plain = run(flux())
    near = {name: error(run(flux(quantize_base=name)), plain) for name in FORMATS}
    assert near["int8_weight_only"] < near["int8"] < 0.03
    assert near["int8"] < near["fp8"] < near["nf4"] < 0.4
    assert torch.equal(run(flux(quantize_base="fp8")), run(flux(fp8_base=True)))


# Options


@pytest.mark.parametrize("script", [SDXL_LORA, FLUX_LORA], ids=["sdxl", "flux"])
def test_weights_are_quantized_in_one_way(script: Any) -> None:
    def problems(**options: Any) -> list[str]:
        given = {"mixed_precision": "bf16", **options}
        told = [str(each) for each in Settings(script, given).problems()]
        return [each for each in told if each.startswith(("fp8", "quantize"))]

    assert problems(quantize_base="nf4", quantize_text_encoders="int8") == []
    assert problems(quantize_base="fp8", fp8_compute=True) == []
    assert problems(fp8_base_unet=True, quantize_text_encoders="nf4") == []
    assert problems(fp8_base=True, quantize_base="nf4") == [
        "quantize_base: nf4 conflicts with fp8_base, which stores the same weights in fp8; turn fp8_base off"
    ]
    assert problems(fp8_base=True, quantize_text_encoders="int8") == [
        "quantize_text_encoders: int8 conflicts with fp8_base, which stores the text encoders in fp8 too; turn "
        "fp8_base off and fp8_base_unet on"
    ]
    assert problems(fp8_compute=True, quantize_base="int8") == [
        "fp8_compute: multiplies weights in fp8, but quantize_base is int8; turn fp8_compute off, or set "
        "quantize_base = fp8"
    ]


@pytest.mark.parametrize("arg", ["algo=full", "dora_wd=True"])
def test_a_network_that_trains_the_base_needs_it_in_full_precision(arg: str) -> None:
    chosen = {"network_module": "somebody.network", "network_args": [arg]}
    told = [str(each) for each in Settings(SDXL_LORA, {**chosen, "quantize_base": "nf4"}).problems()]
    (problem,) = set(told) - set(map(str, Settings(SDXL_LORA, chosen).problems()))
    assert problem == (
        f"quantize_base: somebody.network with {arg.lower()} trains the weights of the base model, so they cannot be "
        "quantized; set quantize_base = none or choose another network"
    )


def test_int8_without_compile_is_reported() -> None:
    def told(**options: Any) -> dict[str, str]:
        return dict(remarks_between(Settings(SDXL_LORA, options).filled, "sdxl"))

    assert "turn compile on, or set int8_weight_only" in told(quantize_base="int8")["quantize_base"]
    for options in ({"quantize_base": "int8", "compile": True}, {"quantize_base": "int8_weight_only"}):
        assert "quantize_base" not in told(**options)


def test_less_memory_is_planned_for_narrower_weights() -> None:
    from tests.planning.test_memory_plan import memory_of, settings_of

    for family in ("sdxl", "flux"):
        facts = card_of(family).plan.memory
        assert facts
        values = facts.quantized["denoiser"][0]
        assert full_size(family).ROWS["lora"]["nf4"]["quantize_base"] == "nf4"
        needed = {
            name: next(
                part.bytes
                for part in memory_of(settings_of(family, "lora", quantize_base=name)).parts
                if part.name == "weights"
            )
            for name in ("none", *FORMATS)
        }
        assert needed["none"] - needed["nf4"] == pytest.approx(values * (HALF - 0.5625), rel=1e-6)
        assert needed["none"] - needed["int8"] == pytest.approx(values * (HALF - 1), rel=1e-2)
        assert needed["int8"] == needed["int8_weight_only"] == needed["fp8"]
