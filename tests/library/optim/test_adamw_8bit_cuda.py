"""On a GPU: the kernel of AdamW8bit does what plain PyTorch does, in one launch, and can be recorded."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from sd_scripts.library.optim import adamw_8bit
from sd_scripts.library.optim.adamw_8bit import AdamW8bit
from tests.library.optim.test_rounding_cuda import CUDA, DTYPES, learn, never_waiting, numbers, weights

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: kernels in Triton"),
]

SHAPES = [(80, 64), (4097,), (64, 12, 3, 3), (77, 3), (640, 640), (16, 2048)]
"""Whole blocks, a block of one value, a convolution, and a weight so small that its moments stay in float32."""
CODES = ("state1", "state2")


@contextmanager
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(adamw_8bit, "kernels_on", lambda device: None)
        yield


def of_codes(optimizer: AdamW8bit, parameters: list[nn.Parameter], name: str) -> Tensor:
    states = (optimizer.state[weight][name] for weight in parameters)
    return torch.cat([codes.flatten().int() for codes in states if codes.dtype == torch.uint8])


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("clipped", [False, True])
def test_float32_weights_train_as_by_plain_pytorch(offset: int, clipped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to values halfway between two levels."""

    def trained() -> tuple[AdamW8bit, list[nn.Parameter]]:
        parameters = weights(torch.float32, SHAPES, offset)
        optimizer = AdamW8bit(parameters, lr=torch.tensor(1e-2, device=CUDA), weight_decay=0.1)
        optimizer.clip_factor = torch.tensor(0.5, device=CUDA) if clipped else None
        learn(optimizer, parameters, range(5))
        return optimizer, parameters

    optimizer, ours = trained()
    with plain(monkeypatch):
        reference, theirs = trained()
    for name in CODES:
        off = (of_codes(optimizer, ours, name) - of_codes(reference, theirs, name)).abs()
        assert off.max() <= 1
        assert (off > 0).float().mean() < 1e-3
    for one, other in zip(ours, theirs, strict=True):
        assert (torch.isclose(one, other, rtol=1e-5, atol=1e-6)).float().mean() > 0.999


def test_it_computes_bitsandbytes_update_on_the_gpu() -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    ours, theirs = weights(torch.float32, SHAPES), weights(torch.float32, SHAPES)
    start = weights(torch.float32, SHAPES)
    learn(AdamW8bit(ours, lr=1e-2), ours, range(20))
    learn(bitsandbytes.optim.AdamW8bit(theirs, lr=1e-2), theirs, range(20))
    for one, other, first in zip(ours, theirs, start, strict=True):
        assert (one - other).abs().mean() < 0.01 * (other - first).abs().mean()


@DTYPES
def test_a_step_has_a_launch_for_each_kind_of_moments_and_does_not_wait(dtype: torch.dtype) -> None:
    parameters = weights(dtype, [(64, 64)] * 300 + [(64,)] * 10)
    optimizer = AdamW8bit(parameters)
    learn(optimizer, parameters, range(1))
    with torch.profiler.profile() as profile, never_waiting():
        optimizer.step()
    torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.name == "_update" and event.device_type.name == "CUDA"]
    assert len(kernels) == 2


@DTYPES
def test_a_recorded_step_updates_as_an_unrecorded_one_at_any_rate(dtype: torch.dtype) -> None:
    recorded, usual = weights(dtype, SHAPES), weights(dtype, SHAPES)
    rates = [torch.tensor(1e-2, device=CUDA) for _ in range(2)]
    ours, theirs = AdamW8bit(recorded, lr=rates[0]), AdamW8bit(usual, lr=rates[1])
    learn(ours, recorded, range(2))
    learn(theirs, usual, range(2))
    assert ours.begin_recording()
    graph = torch.cuda.CUDAGraph()
    ours.fill_scalars()
    with torch.cuda.graph(graph):
        ours.launch()
    for step in range(2, 6):
        for rate in rates:
            rate.fill_(1e-2 / step)
        for number, (one, other) in enumerate(zip(recorded, usual, strict=True)):
            assert one.grad is not None
            other.grad = numbers(tuple(other.shape), 1000 * step + number, dtype)
            one.grad.copy_(other.grad)
        ours.fill_scalars()
        graph.replay()
        ours.replayed()
        theirs.step()
    assert all(torch.equal(one, other) for one, other in zip(recorded, usual, strict=True))
    states = zip(ours.state_dict()["state"].values(), theirs.state_dict()["state"].values(), strict=True)
    assert all(torch.equal(*map(torch.as_tensor, (one[name], other[name]))) for one, other in states for name in one)


@DTYPES
def test_a_state_resumes_bit_for_bit(dtype: torch.dtype) -> None:
    whole, first, second = (weights(dtype, SHAPES) for _ in range(3))
    expected = learn(AdamW8bit(whole, lr=1e-2), whole, range(6))
    stopped, resumed = AdamW8bit(first, lr=1e-2), AdamW8bit(second, lr=1e-2, seed=9)
    values = learn(stopped, first, range(4))
    resumed.load_state_dict(stopped.state_dict())
    with torch.no_grad():
        for weight, value in zip(second, values, strict=True):
            weight.copy_(value)
    assert all(torch.equal(a, b) for a, b in zip(learn(resumed, second, range(4, 6)), expected, strict=True))


def test_masters_use_gradients_of_their_copies_and_rewrite_them() -> None:
    masters, twins = weights(torch.float32, SHAPES), weights(torch.float32, SHAPES)
    copies: dict[Tensor, Tensor] = {master: nn.Parameter(master.detach().bfloat16()) for master in masters}
    ours, theirs = AdamW8bit(masters, lr=1e-2, copies=copies), AdamW8bit(twins, lr=1e-2)
    for step in range(3):
        for number, (twin, copy) in enumerate(zip(twins, copies.values(), strict=True)):
            copy.grad = numbers(tuple(copy.shape), 100 * step + number, torch.bfloat16)
            twin.grad = copy.grad.float()
        ours.step()
        theirs.step()
    for master, twin in zip(masters, twins, strict=True):
        # kernels for other gradients may round a moment that is halfway between two levels to the other one
        assert torch.isclose(master, twin, rtol=1e-6, atol=1e-6).float().mean() > 0.9999
        assert torch.equal(copies[master], master.bfloat16())


def test_bfloat16_weights_are_right_on_average() -> None:
    weight = nn.Parameter(torch.ones(512, 512, dtype=torch.bfloat16, device=CUDA))
    optimizer = AdamW8bit([weight], lr=1e-4, weight_decay=0.0)
    for _ in range(20):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert float(weight.detach().mean(dtype=torch.float32)) == pytest.approx(1 - 20e-4, abs=2e-5)
    assert len(weight.unique()) > 2
