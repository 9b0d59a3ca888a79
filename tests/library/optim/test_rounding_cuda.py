"""On a GPU: the kernels of RoundingAdamW do what plain PyTorch does, in one launch and without waiting."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sd_scripts.library.kernels.triton_kernels import built_for
from sd_scripts.library.optim import stochastic_rounding
from sd_scripts.library.optim.partitioned_optimizer import PartitionedOptimizer
from sd_scripts.library.optim.rounding_adamw import RoundingAdamW
from sd_scripts.library.optim.stochastic_rounding import Key, round_stochastically

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: kernels in Triton"),
]

CUDA = torch.device("cuda")
ODD = [(), (1,), (5,), (16,), (2048,), (2049,), (4, 320, 3, 3), (77, 33), (0,), (640, 640)]
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


def numbers(shape: tuple[int, ...], seed: int, dtype: torch.dtype, offset: int = 0) -> Tensor:
    """Drawn on the CPU; with an offset, a view that starts this many values after an aligned address."""
    size = torch.Size(shape).numel()
    flat = torch.randn(offset + size, generator=torch.Generator().manual_seed(seed))
    return flat.to(CUDA, dtype)[offset:].view(shape)


def weights(dtype: torch.dtype, shapes: list[tuple[int, ...]], offset: int = 0) -> list[nn.Parameter]:
    return [nn.Parameter(numbers(shape, seed, dtype, offset)) for seed, shape in enumerate(shapes)]


def learn(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], steps: range) -> list[Tensor]:
    for step in steps:
        for number, parameter in enumerate(parameters):
            parameter.grad = numbers(tuple(parameter.shape), 1000 * step + number, parameter.dtype)
        optimizer.step()
    return [parameter.detach().clone() for parameter in parameters]


@contextmanager
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(stochastic_rounding, "kernels_on", lambda device: None)
        yield


@contextmanager
def never_waiting() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("rate", ["number", "tensor"])
def test_float32_weights_train_as_by_plain_pytorch(offset: int, rate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def train_plan() -> list[Tensor]:
        parameters = weights(torch.float32, ODD, offset)
        lr = torch.tensor(1e-2, device=CUDA) if rate == "tensor" else 1e-2
        optimizer = RoundingAdamW(parameters, lr=lr, eps=1e-6, weight_decay=0.1)
        optimizer.clip_factor = torch.tensor(0.5, device=CUDA) if rate == "tensor" else None
        return learn(optimizer, parameters, range(5))

    ours = train_plan()
    with plain(monkeypatch):
        torch.testing.assert_close(ours, train_plan(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("offset", [0, 1])
@HALVES
def test_weights_in_half_precision_are_within_one_rounding_and_right_on_average(
    dtype: torch.dtype, offset: int
) -> None:
    shapes = [*ODD, (500, 501)]
    ours = weights(dtype, shapes, offset)
    exact = [nn.Parameter(weight.detach().float()) for weight in ours]
    optimizer, reference = RoundingAdamW(ours, lr=3e-3), torch.optim.AdamW(exact, lr=3e-3)
    for number, (weight, twin) in enumerate(zip(ours, exact, strict=True)):
        weight.grad = numbers(tuple(weight.shape), number, dtype, offset)
        twin.grad = weight.grad.float()
    optimizer.step()
    reference.step()
    pairs = [
        pair
        for weight, twin in zip(ours, exact, strict=True)
        for pair in (
            (weight, twin),
            *((optimizer.state[weight][name], reference.state[twin][name]) for name in ("exp_avg", "exp_avg_sq")),
        )
    ]
    for half, whole in pairs:
        info = torch.finfo(half.dtype)
        off = half.double() - whole.double()
        spacing = info.eps * whole.double().abs().clamp_min(info.tiny)
        assert (off.abs() <= spacing * 1.001).all()
        if len(off.view(-1)) > 200_000:
            assert (off / spacing).mean().abs() < 5 / off.numel() ** 0.5
            assert (off != 0).float().mean() > 0.5


@HALVES
def test_rounding_picks_one_of_both_neighbours_and_is_right_on_average(dtype: torch.dtype) -> None:
    source = torch.tensor([1.001, -1.001, 3e-3, -700.3, 2.0**-14 * 1.0003], device=CUDA).repeat(40_001, 1)
    target = torch.empty_like(source, dtype=dtype)
    round_stochastically(source, target, Key(2**62 + 5, 3, 7))
    step = torch.finfo(dtype).eps * 2 ** source[0].abs().log2().floor()
    assert ((target.double() - source).abs() < step).all()
    assert [len(column.unique()) for column in target.t()] == [2] * 5
    off = (target.double() - source.double()).mean(0).abs() / step
    assert (off < 4 * 0.5 / 40_000**0.5).all()
    again = torch.empty_like(target)
    round_stochastically(source, again, Key(2**62 + 5, 3, 7))
    assert torch.equal(again, target)
    for other in (Key(5, 3, 7), Key(2**62 + 5, 4, 7), Key(2**62 + 5, 3, 8), Key(2**62 + 5, 3, 7, 1)):
        round_stochastically(source, again, other)
        assert not torch.equal(again, target)


@HALVES
def test_representable_values_stay_unchanged(dtype: torch.dtype) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype).to(CUDA)
    target = torch.empty_like(every)
    round_stochastically(every.float(), target, Key(0, 1, 0))
    assert torch.equal(target.nan_to_num(7), every.nan_to_num(7))
    assert target.isnan().equal(every.isnan())


@DTYPES
def test_two_thousand_weights_update_without_synchronizing_and_like_each_by_itself(dtype: torch.dtype) -> None:
    shapes: list[tuple[int, ...]] = [(1 + 37 * i % 4100,) for i in range(2000)]
    together, pieces = weights(dtype, shapes), weights(dtype, shapes)
    rate = torch.tensor(1e-2, device=CUDA)
    whole = RoundingAdamW(together, lr=rate)
    learn(whole, together, range(1))
    with never_waiting():
        whole.step()
    one = RoundingAdamW(pieces, lr=rate)
    learn(one, pieces, range(1))
    grads = [piece.grad for piece in pieces]
    one.zero_grad()
    for piece, grad in zip(pieces, grads, strict=True):  # a launch for each; its bits are of the same number and step
        piece.grad = grad
        one.step()
        piece.grad = None
    assert all(torch.equal(a, b) for a, b in zip(together, pieces, strict=True))


def test_a_step_has_a_launch_or_two_and_not_one_for_each_weight() -> None:
    parameters = weights(torch.bfloat16, [(64, 64)] * 300 + [(5,)] * 10)
    optimizer = RoundingAdamW(parameters)
    learn(optimizer, parameters, range(1))
    with torch.profiler.profile() as profile:
        optimizer.step()
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.name == "_update" and event.device_type.name == "CUDA"]
    assert len(kernels) == 2


def test_masters_use_gradients_of_their_copies_and_rewrite_them() -> None:
    masters = weights(torch.float32, ODD)
    twins = [nn.Parameter(master.detach().clone()) for master in masters]
    copies: dict[Tensor, Tensor] = {master: nn.Parameter(master.detach().bfloat16()) for master in masters}
    ours, theirs = RoundingAdamW(masters, lr=1e-2, copies=copies), torch.optim.AdamW(twins, lr=1e-2)
    for step in range(3):
        for number, (twin, copy) in enumerate(zip(twins, copies.values(), strict=True)):
            copy.grad = numbers(tuple(copy.shape), 100 * step + number, torch.bfloat16)
            twin.grad = copy.grad.float()
        ours.step()
        theirs.step()
    for master, twin in zip(masters, twins, strict=True):
        torch.testing.assert_close(master, twin, rtol=1e-6, atol=1e-6)
        assert torch.equal(copies[master], master.bfloat16())


@pytest.mark.parametrize("layout", ["channels_last", "transposed", "gradient of another layout"])
def test_weights_of_any_layout_train_alike(layout: str) -> None:
    def train_plan(ordered: bool) -> Tensor:
        value = numbers((8, 16, 4, 4), 0, torch.float32)
        grad = numbers((8, 16, 4, 4), 1, torch.float32)
        if not ordered and layout == "transposed":
            value = value.transpose(0, 1).contiguous().transpose(0, 1)
        elif not ordered:
            grad = grad.contiguous(memory_format=torch.channels_last)
            if layout == "channels_last":
                value = value.contiguous(memory_format=torch.channels_last)
        weight = nn.Parameter(value)
        weight.grad = grad
        optimizer = RoundingAdamW([weight], lr=0.1)
        optimizer.step()
        optimizer.step()
        return weight.detach()

    torch.testing.assert_close(train_plan(ordered=False), train_plan(ordered=True), rtol=1e-6, atol=1e-6)


@DTYPES
def test_a_state_resumes_bit_for_bit(dtype: torch.dtype) -> None:
    through, weights_through = _made(dtype)
    expected = learn(through, weights_through, range(6))
    stopped, first = _made(dtype)
    values, state = learn(stopped, first, range(4)), stopped.state_dict()
    resumed, second = _made(dtype, seed=9)
    resumed.load_state_dict(state)
    with torch.no_grad():
        for weight, value in zip(second, values, strict=True):
            weight.copy_(value)
    assert all(torch.equal(a, b) for a, b in zip(learn(resumed, second, range(4, 6)), expected, strict=True))


def _made(dtype: torch.dtype, **arguments: Any) -> tuple[RoundingAdamW, list[nn.Parameter]]:
    parameters = weights(dtype, ODD)
    return RoundingAdamW([{"params": parameters[:4], "lr": 0.1}, {"params": parameters[4:]}], **arguments), parameters


def test_partitions_round_without_waiting() -> None:
    parameters = weights(torch.bfloat16, ODD)
    places = {parameter: i % 3 for i, parameter in enumerate(parameters)}
    groups = [{"params": parameters, "lr": torch.tensor(1e-5, device=CUDA)}]
    optimizer = PartitionedOptimizer(
        groups,
        lambda mine: torch.optim.AdamW(mine, fused=True, capturable=True),
        places.__getitem__,
        rounds=True,
        seed=0,
    )
    learn(optimizer, parameters, range(1))
    before = [parameter.detach().clone() for parameter in parameters]
    with never_waiting():
        optimizer.step()
    moved = sum(int((a != b).sum()) for a, b in zip(parameters, before, strict=True))
    assert 0 < moved < sum(parameter.numel() for parameter in parameters) / 10


@HALVES
def test_the_gradient_norm_is_known_without_synchronizing(dtype: torch.dtype) -> None:
    parameters = weights(dtype, [*ODD, (500, 501)], 1)
    optimizer = RoundingAdamW(parameters)
    for number, parameter in enumerate(parameters):
        parameter.grad = numbers(tuple(parameter.shape), number, dtype)
    optimizer.gradient_norm()
    with never_waiting():
        norm = optimizer.gradient_norm()
        optimizer.step()
    wanted = torch.cat([p.grad.float().flatten() for p in parameters if p.grad is not None]).norm()
    torch.testing.assert_close(norm, wanted)


def test_gradients_may_move_in_each_step() -> None:
    shapes = [(64, 64), (5,)]
    moved, kept = weights(torch.float32, shapes), weights(torch.float32, shapes)
    places = [[torch.empty_like(p) for _ in range(2)] for p in kept]
    ours, theirs = RoundingAdamW(moved, lr=1e-2), RoundingAdamW(kept, lr=1e-2)
    for step in range(6):
        for number, (mine, other) in enumerate(zip(moved, kept, strict=True)):
            mine.grad = places[number][step % 2].copy_(numbers(tuple(mine.shape), 100 * step + number, torch.float32))
            other.grad = mine.grad.clone()
        ours.step()
        theirs.step()
    torch.testing.assert_close(moved, kept, rtol=0, atol=0)


def test_kernels_that_cannot_be_built_are_reported_and_replaced(caplog: pytest.LogCaptureFixture) -> None:
    def fail(kernels: Any) -> None:
        raise RuntimeError("no compiler found")

    assert built_for(CUDA, "sd_scripts.library.optim.rounding_kernels", fail, "updates take longer") is None
    assert caplog.messages == [
        "Triton cannot build kernels, so updates take longer; install a C compiler, such as gcc: no compiler found"
    ]
