"""On a GPU: the kernels of Adafactor do what plain PyTorch does, without waiting."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import optimization

from sd_scripts.library.optim import adafactor
from sd_scripts.library.optim.adafactor import Adafactor
from tests.library.optim.test_rounding_cuda import never_waiting

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: kernels in Triton")

CUDA = torch.device("cuda")
SHAPES: list[tuple[int, ...]] = [
    *((), (1,), (33,), (5000,), (640, 640), (77, 300), (1, 2048), (40, 1), (3000, 17)),
    *((20, 12, 3, 3), (70, 130, 1, 1), (5, 3, 2, 4), (4, 9, 33)),
]
USUAL: dict[str, Any] = {"lr": 1e-3, "relative_step": False, "scale_parameter": False}
SPACING = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 1e-6}
"""The largest change of a value by rounding, as a share of it."""
DTYPES = pytest.mark.parametrize("dtype", list(SPACING))


def numbers(shape: tuple[int, ...], seed: int, dtype: torch.dtype, *, last: bool) -> Tensor:
    """`last`: channels last, for the weights of convolutions."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(CUDA, dtype)
    return drawn.to(memory_format=torch.channels_last) if last and len(shape) == 4 else drawn


def weights(dtype: torch.dtype, *, last: bool = False) -> list[nn.Parameter]:
    return [nn.Parameter(numbers(shape, seed, dtype, last=last)) for seed, shape in enumerate(SHAPES)]


def learn(
    optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], of: torch.dtype, steps: range, *, last: bool
) -> None:
    """`of`: the dtype in which gradients are drawn."""
    for step in steps:
        for number, parameter in enumerate(parameters):
            drawn = numbers(tuple(parameter.shape), 1000 * step + number, of, last=last)
            parameter.grad = drawn.to(parameter.dtype)
        optimizer.step()


@DTYPES
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("more", [{"weight_decay": 0.1}, {"scale_parameter": True, "lr": 1e-2}], ids=str)
def test_weights_are_within_one_rounding_of_transformers_and_right_on_average(
    more: dict[str, Any], last: bool, dtype: torch.dtype
) -> None:
    ours, theirs = weights(dtype, last=last), [nn.Parameter(w.detach().float()) for w in weights(dtype, last=last)]
    mine, other = Adafactor(ours, **{**USUAL, **more}), optimization.Adafactor(theirs, **{**USUAL, **more})
    learn(mine, ours, dtype, range(1), last=last)
    learn(other, theirs, dtype, range(1), last=last)
    for weight, wanted in zip(ours, theirs, strict=True):
        error = weight.detach().float() - wanted.detach()
        spacing = SPACING[dtype] * wanted.detach().abs() + 1e-7
        assert (error.abs() <= spacing).all()
        assert (error / spacing).mean().abs() < 4 / max(weight.numel(), 16) ** 0.5
        for name, value in mine.state[weight].items():
            if isinstance(value, Tensor) and name != "RMS":
                torch.testing.assert_close(value, other.state[wanted][name], rtol=1e-5, atol=0)


@DTYPES
def test_later_steps_have_the_means_of_plain_pytorch(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, plain = weights(dtype), weights(dtype)
    one, other = Adafactor(ours, **USUAL), Adafactor(plain, **USUAL)
    learn(one, ours, dtype, range(4), last=False)
    monkeypatch.setattr(adafactor, "kernels_on", lambda device: None)
    learn(other, plain, dtype, range(4), last=False)
    for weight, wanted in zip(ours, plain, strict=True):
        assert ((weight - wanted).abs() <= 4 * SPACING[dtype] * wanted.abs() + 1e-3).all()
        for name, value in one.state[weight].items():
            torch.testing.assert_close(value, other.state[wanted][name], rtol=1e-5, atol=0)


@DTYPES
def test_a_state_resumes_bit_for_bit_without_synchronizing(dtype: torch.dtype) -> None:
    through, expected = Adafactor(first := weights(dtype), **USUAL), first
    learn(through, expected, dtype, range(5), last=False)
    before = weights(dtype)
    stopped = Adafactor(before, **USUAL)
    learn(stopped, before, dtype, range(3), last=False)
    resumed = Adafactor(before, **USUAL)
    resumed.load_state_dict(stopped.state_dict())
    learn(resumed, before, dtype, range(3, 5), last=False)
    assert all(torch.equal(a, b) for a, b in zip(before, expected, strict=True))
    with never_waiting():
        resumed.step()


def test_kernels_need_the_stated_number_of_launches() -> None:
    shapes = {(640, 640): 4, (33,): 1, (20, 12, 3, 3): 2}
    for shape, launches in shapes.items():
        weight = nn.Parameter(torch.ones(shape, device=CUDA, dtype=torch.bfloat16))
        weight.grad = torch.ones_like(weight)
        optimizer = Adafactor([weight], **USUAL)
        optimizer.step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            optimizer.step()
            torch.cuda.synchronize()
        kernels = [e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        assert len(kernels) == launches
