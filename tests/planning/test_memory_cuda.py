"""On a GPU: blocks copied during the computation arrive in time and keep their updates, checkpoints are restored, fp8
multiplies correctly."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sd_scripts.families.common.family import Components
from sd_scripts.families.common.placing import checkpoint_gradients, placement_of
from sd_scripts.families.flux.load import BLOCK_LISTS
from sd_scripts.families.flux.model import FluxParams, FluxTransformer
from sd_scripts.families.sdxl import memory as sdxl_memory
from sd_scripts.families.sdxl import tiny
from sd_scripts.families.sdxl import unet as sdxl_unet
from sd_scripts.library.diffusion.block_swap import ALIGNMENT, _allocated, host_value
from sd_scripts.library.quantization import fp8
from sd_scripts.library.quantization.quantized import frozen_linear, transposed
from sd_scripts.networks.adapters.lora import LoraLinear
from sd_scripts.networks.layers import Dropouts
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.planning.memory import CONTEXT, GIB
from sd_scripts.settings.settings import Settings
from sd_scripts.training.process.device_memory import limit_gpu_memory
from tests.support.scripts import FLUX_FULL, FLUX_LORA, SDXL_FULL, SDXL_LORA
from tests.support.swap import update_by_block, update_in_backward, updates

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: copies during the computation"),
    pytest.mark.usefixtures("no_graphs"),
]

CUDA = torch.device("cuda")
SHAPE = FluxParams(
    channels=8, width=1024, heads=8, mlp_width=4096, text_width=16, pooled_width=16, double_blocks=5, single_blocks=8
)
SWAP, DOUBLE, SINGLE = 6, 3, 6
multiplies_fp8 = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9), reason="needs a GPU that multiplies fp8"
)
Gradients = tuple[Tensor, dict[str, Tensor]]


def placed(*, trainable: bool, **options: Any) -> FluxTransformer:
    """bf16, as the options specify."""
    torch.manual_seed(0)
    model = FluxTransformer(SHAPE).requires_grad_(trainable).bfloat16()
    for p in model.parameters():
        nn.init.normal_(p, std=0.03)
    settings = Settings((FLUX_FULL if trainable else FLUX_LORA), {"mixed_precision": "bf16", **options})
    BLOCK_LISTS.place(
        Components(denoiser=model, vae=nn.Identity(), text_encoders=[], tokenizers=[], source=""),
        placement_of(settings),
        CUDA,
    )
    if options.get("gradient_checkpointing"):
        checkpoint_gradients(model, settings[TrainingOptions], settings.get(NetworkOptions))
    return model


def transformer(**options: Any) -> FluxTransformer:
    """With a LoRA on every Linear."""
    model = placed(trainable=False, **options)
    g = torch.Generator().manual_seed(1)
    for path, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear):
            lora = LoraLinear(layer, 4, Dropouts())
            for p in (lora.lora_down, lora.lora_up):
                p.data = (torch.randn(p.shape, generator=g) * 0.03).to(CUDA, torch.bfloat16)
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, lora)
    return model


def inputs(tokens: int = 32) -> tuple[Any, ...]:
    g = torch.Generator().manual_seed(2)
    drawn = (torch.randn(shape, generator=g).to(CUDA) for shape in ((1, tokens**2, 8), (1, 256, 16), (1, 16)))
    return *drawn, torch.tensor([0.5], device=CUDA), torch.tensor([1.0], device=CUDA), (tokens, tokens)


def step(model: FluxTransformer) -> Gradients:
    """Output, and the gradient of each LoRA matrix."""
    out = model(*inputs())
    out.float().square().mean().backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    for p in model.parameters():
        p.grad = None
    return out.detach(), grads


def error(ours: Tensor, wanted: Tensor) -> float:
    return float((ours.detach().float() - wanted.detach().float()).norm() / wanted.detach().float().norm())


def assert_near(ours: Gradients, wanted: Gradients, limit: float) -> None:
    assert error(ours[0], wanted[0]) < limit
    assert ours[1].keys() == wanted[1].keys()
    worst = max(wanted[1], key=lambda name: error(ours[1][name], wanted[1][name]))
    assert error(ours[1][worst], wanted[1][worst]) < limit, worst


def late_copies(model: FluxTransformer) -> None:
    """The blocks' streams have other work to finish first."""
    for stream in streams(model):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)


def late_returns(model: FluxTransformer) -> None:
    """Only copies back to main memory are late."""
    swapper: Any = model.swapper
    with torch.cuda.stream(swapper._swaps[0].streams.to_host):
        torch.cuda._sleep(200_000_000)


def late_computation(_: FluxTransformer) -> None:
    torch.cuda._sleep(200_000_000)


def streams(model: FluxTransformer) -> set[torch.cuda.Stream]:
    swapper: Any = model.swapper
    return {stream for swap in swapper._swaps for stream in (swap.streams.to_device, swap.streams.to_host)}


@pytest.mark.usefixtures("_same_kernels")
@pytest.mark.parametrize("late", [late_copies, late_computation])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_weights_are_there_however_copies_and_computation_lag(
    checkpointing: bool, late: Callable[[FluxTransformer], None]
) -> None:
    wanted = step(transformer())
    model = transformer(blocks_to_swap=SWAP, gradient_checkpointing=checkpointing)
    for _ in range(3):
        late(model)
        assert_near(step(model), wanted, 0.005)
    with torch.no_grad():
        late(model)
        assert error(model(*inputs()), wanted[0]) < 0.005
        late(model)
        assert error(model(*inputs()), wanted[0]) < 0.005
    late(model)
    assert_near(step(model), wanted, 0.005)


def test_main_memory_is_pinned() -> None:
    swapper: Any = transformer(blocks_to_swap=SWAP).swapper
    held = [buffer for swap in swapper._swaps for buffer in swap._host_copies]
    assert held
    assert all(buffer.is_pinned() for buffer in held)


@pytest.mark.parametrize("direction", ["HtoD", "DtoH"])
def test_copies_run_during_the_computation(direction: str) -> None:
    """In the trace of a step whose blocks keep the GPU busy for longer than a slow CPU needs to queue them."""
    from torch.profiler import ProfilerActivity, profile

    options = {"blocks_to_swap": SWAP, "gradient_checkpointing": True}
    learner = Learner(fused=True, **options) if direction == "DtoH" else None
    model = learner.model if learner else transformer(**options)
    for block in (*model.double_blocks, *model.single_blocks):
        block.register_forward_pre_hook(lambda *_: torch.cuda._sleep(20_000_000))  # about 11 ms
    takes_step = learner.step if learner else lambda: step(model)
    takes_step()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        takes_step()
        torch.cuda.synchronize()
    on_device = [e for e in trace.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    copies = [e.time_range for e in on_device if direction in e.name and e.time_range.elapsed_us() > 50]
    kernels = [e.time_range for e in on_device if not e.name.startswith(("Memcpy", "Memset"))]
    assert copies, "no block travelled"
    beside = sum(max(0.0, min(c.end, k.end) - max(c.start, k.start)) for c in copies for k in kernels)
    assert beside > 0.8 * sum(c.elapsed_us() for c in copies)


def bytes_of(block: nn.Module) -> int:
    return sum(-(-p.numel() * p.element_size() // ALIGNMENT) * ALIGNMENT for p in block.parameters())


def bytes_off(model: FluxTransformer) -> int:
    """Of the blocks that are swapped."""
    return DOUBLE * bytes_of(model.double_blocks[0]) + SINGLE * bytes_of(model.single_blocks[0])


@pytest.mark.parametrize("trainable", [False, True])
def test_swapped_blocks_use_no_gpu_memory_even_while_being_placed(trainable: bool) -> None:
    used, peaks = [], []
    for swap in (0, SWAP):
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        torch.manual_seed(0)
        model = FluxTransformer(SHAPE).requires_grad_(trainable).bfloat16()
        settings = Settings(FLUX_LORA, {"blocks_to_swap": swap})
        BLOCK_LISTS.place(
            Components(denoiser=model, vae=nn.Identity(), text_encoders=[], tokenizers=[], source=""),
            placement_of(settings),
            CUDA,
        )
        used.append(torch.cuda.memory_allocated() - before)
        peaks.append(torch.cuda.max_memory_allocated() - before)
        off = bytes_off(model)
        del model
    assert used[0] - used[1] > 0.98 * off
    assert peaks[1] < used[1] + 0.02 * off


@pytest.mark.usefixtures("_same_kernels")
@pytest.mark.parametrize("swap", [0, SWAP])
def test_checkpoints_in_main_memory_return_intact(swap: int) -> None:
    wanted = step(transformer())
    model = transformer(blocks_to_swap=swap, gradient_checkpointing=True, cpu_offload_checkpointing=True)
    for late in (late_computation, lambda _: None):
        late(model)
        assert_near(step(model), wanted, 0.005)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_checkpointing": True},
        {"gradient_checkpointing": True, "cpu_offload_checkpointing": True},
        {"fp8_base_unet": True},
        {"quantize_base": "int8_weight_only"},
        {"quantize_base": "nf4", "gradient_checkpointing": True},
    ],
)
def test_compiled_swapped_matches_eager_resident(options: dict[str, Any]) -> None:
    wanted = step(transformer(**options))
    model = compiled_and_swapped(**options)
    for _ in range(2):
        assert_near(step(model), wanted, 0.05)


@multiplies_fp8
def test_fp8_products_err_no_more_where_compiled_and_swapped() -> None:
    """The compiler rounds to bf16 at other places, which moves a value to the next of fp8's few steps now and then."""
    exact = step(transformer(fp8_base_unet=True))
    options = {"fp8_compute": True, "fp8_base_unet": True}
    eager, compiled = step(transformer(**options)), step(compiled_and_swapped(**options))
    assert error(compiled[0], exact[0]) < 1.25 * error(eager[0], exact[0])
    assert error(together(compiled), together(exact)) < 1.1 * error(together(eager), together(exact))


def together(gradients: Gradients) -> Tensor:
    """All in one vector; of a single matrix the error is a matter of chance."""
    return torch.cat([gradient.float().flatten() for gradient in gradients[1].values()])


def compiled_and_swapped(**options: Any) -> FluxTransformer:
    model = transformer(**options, blocks_to_swap=SWAP)
    for block in (*model.double_blocks, *model.single_blocks):
        block.compile(dynamic=False)
    return model


@multiplies_fp8
def test_transposing_in_tiles_moves_every_byte() -> None:
    for shape in ((1024, 3072), (96, 80), (16, 4112)):
        weight = torch.randn(shape, device=CUDA).to(fp8.STORAGE)
        moved = transposed(weight)
        assert moved.is_contiguous()
        assert torch.equal(moved.view(torch.uint8), weight.view(torch.uint8).t())


@multiplies_fp8
@pytest.mark.parametrize("keep_transposed", [False, True])
@pytest.mark.parametrize("tokens", [512, 4608, 999])
def test_products_in_fp8_round_to_three_bits_and_no_worse(tokens: int, keep_transposed: bool) -> None:
    """Sizes of FLUX.1. Each factor is off by 2.6 % on average, so a product is by 3.7 %."""
    torch.manual_seed(0)
    layer = nn.Linear(3072, 12288, device=CUDA, dtype=torch.bfloat16).requires_grad_(False)
    x = torch.randn(1, tokens, 3072, device=CUDA, dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn(1, tokens, 12288, device=CUDA, dtype=torch.bfloat16)
    wanted = frozen_linear(x, layer)
    (wanted_grad,) = torch.autograd.grad(wanted, x, grad)
    fp8.quantize_(layer, torch.bfloat16, compute=True, keep_transposed=keep_transposed)
    ours = frozen_linear(x, layer)
    (ours_grad,) = torch.autograd.grad(ours, x, grad)
    assert error(ours, wanted) < 0.045
    assert error(ours_grad, wanted_grad) < 0.045


def test_the_state_dict_on_a_gpu_has_every_blocks_own_weights() -> None:
    plain, swapped = transformer().state_dict(), transformer(blocks_to_swap=SWAP).state_dict()
    assert plain.keys() == swapped.keys()
    assert all(torch.equal(plain[name].cpu(), swapped[name].cpu()) for name in plain)


class Learner:
    """All of a transformer in training. Fused: updated within backward."""

    def __init__(self, *, fused: bool, **options: Any):
        self.model, self.fused = placed(trainable=True, **options), fused
        self.update = updates(self.model, "AdamW")
        if fused:
            update_in_backward(self.model, self.update)

    def step(self, late: Callable[[FluxTransformer], None] = lambda _: None) -> Tensor:
        """One update; returns the output before it."""
        late(self.model)
        out = self.model(*inputs(8))
        out.float().square().mean().backward()
        if not self.fused:
            late(self.model)
            update_by_block(self.model, self.update)
        return out.detach()

    def weights(self) -> dict[str, Tensor]:
        """The current contents of a file."""
        return {name: tensor.cpu().clone() for name, tensor in self.model.state_dict().items()}


@pytest.fixture
def _same_kernels() -> Iterator[None]:
    """Attention whose backward adds up in one order, so that two runs agree bit for bit."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def assert_same(ours: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert ours.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(ours[name], wanted[name])] == []


@pytest.mark.usefixtures("_same_kernels")
@pytest.mark.parametrize("late", [late_copies, late_returns, late_computation])
@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_checkpointing": True}, {"gradient_checkpointing": True, "cpu_offload_checkpointing": True}],
)
@pytest.mark.parametrize("fused", [False, True])
def test_trained_blocks_keep_their_updates_however_copies_and_computation_lag(
    fused: bool, options: dict[str, Any], late: Callable[[FluxTransformer], None]
) -> None:
    wanted, ours = Learner(fused=fused, **options), Learner(fused=fused, **options, blocks_to_swap=SWAP)
    before = ours.weights()
    for _ in range(3):
        assert torch.equal(ours.step(late), wanted.step())
        assert_same(ours.weights(), wanted.weights())
        with torch.no_grad():
            late(ours.model)
            assert torch.equal(ours.model(*inputs(8)), wanted.model(*inputs(8)))
    for _ in range(2):  # nobody waits between them
        ours.step(late)
        wanted.step()
    after = ours.weights()
    assert_same(after, wanted.weights())
    assert all(after[name].isfinite().all() for name in after)
    assert [name for name in after if after[name].dim() > 1 and torch.equal(after[name], before[name])] == []


@pytest.mark.usefixtures("_same_kernels")
@pytest.mark.parametrize("fused", [False, True])
def test_compiled_swapped_blocks_train_like_compiled_ones(fused: bool) -> None:
    learners = [Learner(fused=fused, gradient_checkpointing=True, blocks_to_swap=swap) for swap in (0, SWAP)]
    for learner in learners:
        for block in (*learner.model.double_blocks, *learner.model.single_blocks):
            block.compile(dynamic=False)
        for _ in range(3):
            learner.step()
    assert_same(learners[1].weights(), learners[0].weights())


@pytest.mark.usefixtures("_same_kernels")
@pytest.mark.parametrize("late", [late_copies, late_returns, late_computation])
def test_values_written_into_main_memory_reach_the_device(late: Callable[[FluxTransformer], None]) -> None:
    learner = Learner(fused=True, blocks_to_swap=SWAP)
    saved, wanted = learner.weights(), learner.step()
    learner.step(late)
    with torch.no_grad():
        for name, p in learner.model.named_parameters():
            host_value(p).copy_(saved[name])
    swapper: Any = learner.model.swapper
    swapper.refill()
    late(learner.model)
    assert torch.equal(learner.step(), wanted)


@pytest.mark.parametrize("fused", [False, True])
def test_trained_swapped_blocks_use_no_extra_gpu_memory_in_a_step(fused: bool) -> None:
    """Gradients and moments are the same as for resident ones; weights and tensors in flight are smaller."""
    peaks, off = [], 0
    for swap in (0, SWAP):
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        learner = Learner(fused=fused, gradient_checkpointing=True, blocks_to_swap=swap)
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):
            learner.step()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        off = bytes_off(learner.model)
        del learner
    assert peaks[0] - peaks[1] > 0.95 * off


U_NET = tiny.UNET | {
    "block_out_channels": (64, 128, 512),
    "transformer_layers_per_block": (1, 1, 4),
    "attention_head_dim": (1, 2, 8),
}
"""24 transformer blocks of 10 MB in bf16."""


class UNetLearner:
    """A U-Net in training. A LoRA on each Linear of the transformers, or all of it, updated within backward."""

    def __init__(self, swap: int, *, full: bool, **options: Any):
        torch.manual_seed(0)
        self.unet: Any = sdxl_unet.prepare_unet(UNet2DConditionModel(**U_NET).requires_grad_(full).bfloat16())
        settings = Settings(SDXL_FULL if full else SDXL_LORA, {"blocks_to_swap": swap, **options})
        components = Components(denoiser=self.unet, vae=nn.Identity(), text_encoders=[], tokenizers=[], source="")
        sdxl_memory.place(components, placement_of(settings), CUDA)
        if options.get("gradient_checkpointing"):
            sdxl_unet.checkpoint_gradients(self.unet, settings[TrainingOptions], settings.get(NetworkOptions))
        if full:
            self.update = updates(self.unet, "AdamW")
            update_in_backward(self.unet, self.update)
        else:
            self._adapt()

    def _adapt(self) -> None:
        g = torch.Generator().manual_seed(1)
        for path, layer in list(self.unet.named_modules()):
            if type(layer) is nn.Linear and "attentions" in path:
                lora = LoraLinear(layer, 4, Dropouts())
                for p in (lora.lora_down, lora.lora_up):
                    p.data = (torch.randn(p.shape, generator=g) * 0.03).to(CUDA, torch.bfloat16)
                parent, _, name = path.rpartition(".")
                setattr(self.unet.get_submodule(parent), name, lora)

    def step(self, late: bool = False) -> Tensor:
        """Forward and backward; return the output. `late`: copies have other work to finish first."""
        if late:
            late_copies(self.unet)
        out = self.predict()
        out.square().mean().backward()
        return out.detach()

    def predict(self) -> Tensor:
        g = torch.Generator().manual_seed(2)
        shapes = ((1, 4, 32, 32), (1, 77, U_NET["cross_attention_dim"]), (1, tiny.TEXT_WIDTHS[1]))
        noisy, context, pooled = (torch.randn(shape, generator=g).to(CUDA, torch.bfloat16) for shape in shapes)
        sizes = torch.full((1, 6), 256, device=CUDA)
        return sdxl_unet.predict(self.unet, noisy, torch.tensor([500], device=CUDA), context, pooled, sizes)

    def learned(self) -> dict[str, Tensor]:
        """Gradients of a LoRA, or the contents of a file of the whole model."""
        found = {name: p.grad for name, p in self.unet.named_parameters() if p.grad is not None}
        return found or {name: tensor.cpu().clone() for name, tensor in self.unet.state_dict().items()}


@pytest.fixture
def _repeatable() -> Iterator[None]:
    """Kernels of attention and of convolutions that add up in one order."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    with sdpa_kernel(SDPBackend.MATH):
        yield
    torch.backends.cudnn.deterministic = before


@pytest.mark.usefixtures("_repeatable")
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("swap", [10, 22])
def test_swapped_blocks_of_a_u_net_match_resident_ones(swap: int, checkpointing: bool, full: bool) -> None:
    wanted, ours = (UNetLearner(s, full=full, gradient_checkpointing=checkpointing) for s in (0, swap))
    for _ in range(3):
        assert torch.equal(ours.step(late=True), wanted.step())
        assert_same(ours.learned(), wanted.learned())
        with torch.no_grad():
            late_copies(ours.unet)
            assert torch.equal(ours.predict(), wanted.predict())


@pytest.mark.parametrize("full", [False, True])
def test_swapped_blocks_of_a_u_net_use_no_extra_gpu_memory_in_a_step(full: bool) -> None:
    peaks, off = [], 0
    for swap in (0, 22):
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        learner = UNetLearner(swap, full=full, gradient_checkpointing=True)
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):
            learner.step()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        off = 22 * bytes_of(sdxl_memory.swappable_blocks(learner.unet)[0])
        del learner
    assert peaks[0] - peaks[1] > (0.9 if full else 0.8) * off  # a LoRA's own weights count as the block's


def test_allocated_memory_matches_pytorch() -> None:
    held = torch.empty(GIB // 4, dtype=torch.uint8, device=CUDA)
    assert _allocated(CUDA) == torch.cuda.memory_allocated(CUDA) >= held.nbytes


def test_a_limit_of_gpu_memory_is_an_error_beyond_it() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    limit_gpu_memory(CUDA, (reserved + CONTEXT) / GIB + 1.0)
    try:
        held = torch.empty(GIB // 2, dtype=torch.uint8, device=CUDA)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(GIB, dtype=torch.uint8, device=CUDA)
        assert held.is_cuda
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, torch.cuda.current_device())
