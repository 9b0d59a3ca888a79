"""AdamW in half precision matches float32 on average."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sd_scripts.library.optim.lr_schedulers import make_scheduler
from sd_scripts.library.optim.merged_adamw import MergedAdamW
from sd_scripts.library.optim.optimizers import description, is_rounding_adamw, make_optimizer
from sd_scripts.library.optim.partitioned_optimizer import PartitionedOptimizer
from sd_scripts.library.optim.rounding_adamw import RoundingAdamW
from sd_scripts.library.optim.stochastic_rounding import Key, round_stochastically
from sd_scripts.options.optimization.optimizer import LrSchedulerOptions, OptimizerOptions

FIRST = Key(0, 1, 0)
HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


def rounded(source: Tensor, dtype: torch.dtype, key: Key = FIRST) -> Tensor:
    target = torch.empty_like(source, dtype=dtype)
    round_stochastically(source, target, key)
    return target


def spacing(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Between the neighbours of a value in a half precision."""
    return torch.finfo(dtype).eps * 2 ** values.abs().log2().floor()


def learn(optimizer: torch.optim.Optimizer, weights: list[nn.Parameter], steps: range, scale: float = 1.0) -> None:
    for step in steps:
        g = torch.Generator().manual_seed(step)
        for weight in weights:
            weight.grad = (torch.randn(weight.shape, generator=g) * scale).to(weight.dtype)
        optimizer.step()


def values(weights: list[nn.Parameter]) -> list[Tensor]:
    return [weight.detach().clone() for weight in weights]


@HALVES
def test_rounding_picks_one_of_both_neighbours_and_is_right_on_average(dtype: torch.dtype) -> None:
    source = torch.tensor([1.001, -1.001, 3e-3, -700.3, 2.0**-14 * 1.0003]).repeat(40_000, 1)
    target = rounded(source, dtype).double()
    step = spacing(source, dtype)
    assert ((target - source).abs() < step).all()
    assert [len(column.unique()) for column in target.t()] == [2] * 5
    off = (target - source.double()).mean(0).abs() / step[0]
    assert (off < 4 * 0.5 / 40_000**0.5).all()  # four deviations of the mean


@HALVES
def test_representable_values_stay_unchanged(dtype: torch.dtype) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    assert torch.equal(rounded(every.float(), dtype).nan_to_num(7), every.nan_to_num(7))
    assert rounded(every.float(), dtype).isnan().equal(every.isnan())


def test_fp16_rounds_to_the_nearest_at_a_different_spacing() -> None:
    source = torch.tensor([1e-5, 3e-8, 1e-12, -2e-6, 65510.0, 65530.0, -1e6, float("inf")]).repeat(100, 1)
    assert torch.equal(rounded(source, torch.float16), source.half())


def test_the_key_determines_the_bits() -> None:
    source = torch.randn(1000)
    first = rounded(source, torch.bfloat16)
    assert torch.equal(rounded(source, torch.bfloat16), first)
    for other in (Key(1, 1, 0), Key(0, 2, 0), Key(0, 1, 1), Key(0, 1, 0, 1)):
        assert not torch.equal(rounded(source, torch.bfloat16, other), first)


def test_a_target_of_a_different_layout_gets_the_same_values() -> None:
    source = torch.randn(4, 8)
    target = torch.empty(8, 4, dtype=torch.bfloat16).t()
    round_stochastically(source, target, FIRST)
    assert torch.equal(target, rounded(source, torch.bfloat16))


@pytest.mark.parametrize("rate", [1e-2, torch.tensor(1e-2)], ids=["number", "tensor"])
def test_float32_weights_train_as_with_torchs_adamw(rate: float | Tensor) -> None:
    shapes = [(), (1,), (7, 5), (4, 3, 3, 3)]
    g = torch.Generator().manual_seed(0)
    theirs = [nn.Parameter(torch.randn(shape, generator=g)) for shape in shapes]
    ours = [nn.Parameter(weight.detach().clone()) for weight in theirs]
    arguments: dict[str, Any] = {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
    learn(torch.optim.AdamW(theirs, lr=1e-2, **arguments), theirs, range(20))
    learn(RoundingAdamW(ours, lr=rate, **arguments), ours, range(20))
    torch.testing.assert_close(values(ours), values(theirs), rtol=1e-6, atol=1e-6)


@HALVES
def test_half_precision_weights_follow_float32_where_they_would_stall(dtype: torch.dtype) -> None:
    exact, ours, still = (nn.Parameter(torch.ones(50_000, dtype=d)) for d in (torch.float32, dtype, dtype))
    rate = torch.finfo(dtype).eps / 800  # 1e-5 for bf16
    for weight, kind in ((exact, torch.optim.AdamW), (ours, RoundingAdamW), (still, torch.optim.AdamW)):
        optimizer = kind([weight], lr=rate, weight_decay=0)
        for _ in range(50):
            weight.grad = torch.full_like(weight, 2.0)
            optimizer.step()
    assert torch.equal(still, torch.ones_like(still))
    moved = (1 - exact.double()).mean()
    torch.testing.assert_close((1 - ours.double()).mean(), moved, rtol=0.05, atol=0)


def test_a_second_moment_decays_where_bf16_would_freeze_it() -> None:
    weight = nn.Parameter(torch.zeros(20_000, dtype=torch.bfloat16))
    optimizer = RoundingAdamW([weight])
    for grad in (1.0, *[0.0] * 100):
        weight.grad = torch.full_like(weight, grad)
        optimizer.step()
    expected = 0.001 * 0.999**100
    assert optimizer.state[weight]["exp_avg_sq"].double().mean().item() == pytest.approx(expected, rel=2e-3)


def test_fp16_weights_with_usual_gradients_get_steps_of_the_usual_size() -> None:
    exact, ours = nn.Parameter(torch.zeros(2000)), nn.Parameter(torch.zeros(2000, dtype=torch.float16))
    for weight, kind in ((exact, torch.optim.AdamW), (ours, RoundingAdamW)):
        learn(kind([weight], lr=1e-3), [weight], range(3), scale=1e-5)  # their squares are 0 in fp16
    assert ours.isfinite().all()
    assert ours.abs().max().item() == pytest.approx(exact.abs().max().item(), rel=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_state_resumes_bit_for_bit(dtype: torch.dtype) -> None:
    def made(seed: int) -> tuple[RoundingAdamW, list[nn.Parameter]]:
        g = torch.Generator().manual_seed(3)
        weights = [nn.Parameter(torch.randn(n, generator=g).to(dtype)) for n in (40, 7, 1)]
        return RoundingAdamW([{"params": weights[:1], "lr": 0.1}, {"params": weights[1:]}], seed=seed), weights

    through, expected = made(5)
    learn(through, expected, range(6))
    stopped, weights = made(5)
    learn(stopped, weights, range(4))
    state = deepcopy(stopped.state_dict())
    resumed, again = made(9)  # the seed comes from the state
    resumed.load_state_dict(state)
    with torch.no_grad():
        for weight, value in zip(again, weights, strict=True):
            weight.copy_(value)
    learn(resumed, again, range(4, 6))
    assert all(torch.equal(a, b) for a, b in zip(again, expected, strict=True))
    for weight, other in zip(again, expected, strict=True):
        for name, moment in through.state[other].items():
            if isinstance(moment, Tensor):
                assert resumed.state[weight][name].dtype == moment.dtype
                assert torch.equal(resumed.state[weight][name], moment)


def test_a_master_uses_the_gradient_of_its_copy_and_rewrites_it() -> None:
    master, plain = (nn.Parameter(torch.linspace(-1, 1, 50)) for _ in range(2))
    copy = nn.Parameter(master.detach().bfloat16())
    ours, theirs = RoundingAdamW([master], copies={master: copy}), torch.optim.AdamW([plain])
    for step in range(3):
        copy.grad = torch.randn(50, generator=torch.Generator().manual_seed(step)).bfloat16()
        plain.grad = copy.grad.float()
        ours.step()
        theirs.step()
    torch.testing.assert_close(master.detach(), plain.detach(), rtol=1e-6, atol=1e-6)
    assert torch.equal(copy, master.bfloat16())
    assert ours.state[master]["exp_avg_sq"].dtype == torch.float32
    assert master.grad is None


def test_the_clip_factor_scales_the_update_and_not_the_stored_gradients() -> None:
    whole, half = (nn.Parameter(torch.ones(9)) for _ in range(2))
    one, other = RoundingAdamW([whole], eps=1.0), RoundingAdamW([half], eps=1.0)
    whole.grad, half.grad = torch.full((9,), 0.25), torch.full((9,), 0.5)
    other.clip_factor = torch.tensor(0.5)
    one.step()
    other.step()
    assert torch.equal(whole, half)
    assert torch.equal(half.grad, torch.full((9,), 0.5))


def test_unsupported_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"betas = \(0.9, 1.0\) is out of range"):
        RoundingAdamW([nn.Parameter(torch.ones(1))], betas=(0.9, 1.0))
    with pytest.raises(ValueError, match=r"weights in torch\.float64"):
        RoundingAdamW([nn.Parameter(torch.ones(1, dtype=torch.float64))])


def test_adamw_rounds_where_weights_need_it_unless_an_argument_wants_torchs() -> None:
    options = OptimizerOptions(learning_rate=0.01, optimizer_args=["weight_decay=0.1", "betas=(0.9, 0.99)"])
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = make_optimizer(options, [{"params": [weight], "lr": 0.5}], rounding=True, seed=7)
    assert isinstance(optimizer, RoundingAdamW)
    (group,) = optimizer.param_groups
    assert (group["seed"], group["weight_decay"], group["betas"]) == (7, 0.1, (0.9, 0.99))
    assert (group["initial_lr"], group["lr"]) == (0.5, torch.tensor(0.5))
    assert description(optimizer, options) == "torch.optim.adamw.AdamW(weight_decay=0.1,betas=(0.9, 0.99))"
    assert type(make_optimizer(options, [{"params": [weight]}])) is MergedAdamW
    torchs = OptimizerOptions(optimizer_args=["amsgrad=True"])
    assert not is_rounding_adamw(torchs)
    assert type(make_optimizer(torchs, [{"params": [weight]}], rounding=True)) is torch.optim.AdamW
    with pytest.raises(ValueError, match=r"optimizer_args, learning_rate: AdamW does not accept these values .*'beta'"):
        make_optimizer(OptimizerOptions(optimizer_args=["beta=1"]), [{"params": [weight]}], rounding=True)


def test_a_schedule_sets_the_rate_of_adamw_in_partitions_and_shows_adafactors_own() -> None:
    weight = nn.Parameter(torch.ones(3, 3, dtype=torch.bfloat16))
    options = OptimizerOptions(learning_rate=0.5)
    adamw = PartitionedOptimizer(
        [{"params": [weight]}],
        lambda groups: make_optimizer(options, groups, rounding=True),
        id,
        rounds=False,
        seed=0,
    )
    rate = adamw.param_groups[0]["lr"]
    scheduler = make_scheduler(LrSchedulerOptions(lr_scheduler="linear"), adamw, total_steps=4)
    adamw.step()
    scheduler.step()
    assert adamw.param_groups[0]["lr"] is rate is adamw.representative.param_groups[0]["lr"]
    assert rate.item() == 0.375
    own = OptimizerOptions(optimizer_type="Adafactor")
    adafactor = PartitionedOptimizer(
        [{"params": [weight]}], lambda groups: make_optimizer(own, groups), id, rounds=True, seed=0
    )
    scheduler = make_scheduler(LrSchedulerOptions(), adafactor, total_steps=4)
    weight.grad = torch.ones_like(weight)
    adafactor.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [pytest.approx(0.01, rel=0.1)]


def test_the_gradient_norm_is_known_before_the_step() -> None:
    weights = [nn.Parameter(torch.randn(shape).bfloat16()) for shape in ((3, 4), (5,), ())]
    master = nn.Parameter(torch.randn(7))
    copy = nn.Parameter(master.detach().bfloat16())
    optimizer = RoundingAdamW([{"params": weights}, {"params": [master]}], copies={master: copy})
    for weight in (*weights[:2], copy):
        weight.grad = torch.randn_like(weight)
    wanted = torch.cat([w.grad.float().flatten() for w in (*weights[:2], copy) if w.grad is not None]).norm()
    torch.testing.assert_close(optimizer.gradient_norm(), wanted)
    optimizer.step()
    assert optimizer.gradient_norm() == optimizer.gradient_norm()
