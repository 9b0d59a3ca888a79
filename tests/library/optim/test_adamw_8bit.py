"""AdamW8bit: bitsandbytes' update and states, computed so that a recorded step can contain it."""

import copy
import warnings
from typing import Any

import pytest
import torch
from bitsandbytes.functional import create_dynamic_map
from bitsandbytes.optim import AdamW8bit as TheirAdamW8bit
from torch import Tensor, nn

from sd_scripts.library.optim.adamw_8bit import WRAPPED, AdamW8bit
from sd_scripts.library.optim.blockwise import (
    CELL_BITS,
    CELLS,
    FIRST_EXPONENT,
    dequantize,
    levels,
    quantize,
    starts,
    thresholds,
)
from sd_scripts.library.optim.optimizers import class_names, description, make_optimizer
from sd_scripts.library.optim.partitioned_optimizer import PartitionedOptimizer
from sd_scripts.library.optim.rounding_adamw import RoundingAdamW
from sd_scripts.options.optimization.optimizer import OptimizerOptions

warnings.filterwarnings("ignore", module="bitsandbytes")
CPU = torch.device("cpu")
SHAPES = [(80, 64), (4097,), (64, 12, 3, 3), (77, 3)]
"""Whole blocks, a block of one value, a convolution, and a weight so small that its moments stay in float32."""


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(normal(*shape, seed=n).to(dtype)) for n, shape in enumerate(SHAPES)]


def learn(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], steps: range) -> None:
    """Gradients differ in size by five orders of magnitude within a weight."""
    for step in steps:
        for number, weight in enumerate(parameters):
            sizes = torch.logspace(-5, 0, weight.numel()).view(weight.shape)
            weight.grad = (normal(*weight.shape, seed=100 * step + number) * sizes).to(weight.dtype)
        optimizer.step()


def set_to(weights: list[nn.Parameter], values: list[nn.Parameter]) -> None:
    with torch.no_grad():
        for weight, value in zip(weights, values, strict=True):
            weight.copy_(value)


@pytest.mark.parametrize("signed", [True, False])
def test_the_levels_are_bitsandbytes_dynamic_map(signed: bool) -> None:
    assert torch.equal(levels(CPU, signed=signed), create_dynamic_map(signed=signed))


@pytest.mark.parametrize("signed", [True, False])
def test_values_become_the_nearest_level_of_their_block(signed: bool) -> None:
    values = normal(1000, seed=0) * torch.logspace(-9, 3, 1000)
    values = values if signed else values.abs()
    of_levels = levels(CPU, signed=signed)
    codes, absmax = quantize(values, of_levels)
    assert torch.equal(absmax, torch.stack([part.abs().max() for part in values.split(256)]))
    scaled = values / absmax.repeat_interleave(256)[:1000]
    nearest = (scaled[:, None] - of_levels).abs().min(1).values
    off = (dequantize(codes, absmax, of_levels) / absmax.repeat_interleave(256)[:1000] - scaled).abs()
    torch.testing.assert_close(off, nearest, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("signed", [True, False])
def test_the_first_bits_of_a_value_leave_two_codes(signed: bool) -> None:
    """Which the kernel relies on; tried where it could fail, at both ends of cells and of levels' ranges."""
    limits = thresholds(levels(CPU, signed=signed))
    ends = torch.cat([limits, torch.arange(0, 127 << 23, 1 << 23 - CELL_BITS, dtype=torch.int32).view(torch.float32)])
    values = torch.cat([ends, ends.nextafter(torch.tensor(1.0)), ends.nextafter(torch.tensor(0.0)), torch.ones(1)])
    values = torch.cat([values, -values]) if signed else values.abs()
    cell = (values.abs().view(torch.int32) >> 23 - CELL_BITS) - (FIRST_EXPONENT << CELL_BITS)
    start = starts(levels(CPU, signed=signed))[cell.clamp(0, CELLS - 1) + CELLS * values.signbit()].int()
    above = values > torch.cat([limits, torch.tensor([torch.inf])])[start]
    assert torch.equal(start + above, torch.bucketize(values, limits, out_int32=True))


def test_a_block_of_zeros_stays_zero() -> None:
    of_levels = levels(CPU, signed=True)
    assert not dequantize(*quantize(torch.zeros(300), of_levels), of_levels).any()


def test_it_computes_bitsandbytes_update() -> None:
    """bitsandbytes' CPU code finds the level only to 1/65536 of a block's largest value, so the few smallest differ."""
    ours, theirs, start = weights(), weights(), weights()
    learn(AdamW8bit(ours, lr=1e-2, weight_decay=0.1), ours, range(20))
    learn(TheirAdamW8bit(theirs, lr=1e-2, weight_decay=0.1), theirs, range(20))
    for one, other, first in zip(ours, theirs, start, strict=True):
        off, moved = (one - other).abs(), (other - first).abs()
        assert (off <= 0.02 * moved + 1e-5).float().mean() > 0.95
        assert off.mean() < 0.01 * moved.mean()


@pytest.mark.parametrize("make", [AdamW8bit, TheirAdamW8bit])
@pytest.mark.parametrize("resume", [AdamW8bit, TheirAdamW8bit])
def test_either_continues_from_the_others_state(make: Any, resume: Any) -> None:
    whole, rest = weights(), weights()
    optimizer, resumed = make(whole, lr=1e-2), resume(rest, lr=1e-2)
    learn(optimizer, whole, range(3))
    set_to(rest, whole)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    learn(optimizer, whole, range(3, 4))
    learn(resumed, rest, range(3, 4))
    for one, other in zip(rest, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_the_state_has_bitsandbytes_entries() -> None:
    ours, theirs = weights(), weights()
    own, other = AdamW8bit(ours), TheirAdamW8bit(theirs)
    learn(own, ours, range(2))
    learn(other, theirs, range(2))
    for mine, saved in zip(own.state_dict()["state"].values(), other.state_dict()["state"].values(), strict=True):
        entries = {**saved, **saved[WRAPPED]}
        del entries[WRAPPED]
        assert {name: (value.dtype, value.shape) for name, value in mine.items() if name != "step"} == {
            name: (value.dtype, value.shape) for name, value in entries.items() if name != "step"
        }
        assert mine["step"] == entries["step"] == 2


def test_a_state_of_other_sizes_or_levels_is_refused() -> None:
    parameters = weights()
    optimizer = AdamW8bit(parameters)
    learn(optimizer, parameters, range(1))
    state = optimizer.state_dict()
    wider = [nn.Parameter(torch.zeros(2 * len(weight), *weight.shape[1:])) for weight in parameters]
    with pytest.raises(ValueError, match=r"does not fit a weight of shape \(160, 64\)"):
        AdamW8bit(wider).load_state_dict(state)
    state["state"][0] = {**state["state"][0], "qmap1": torch.linspace(-1, 1, 256)}
    with pytest.raises(ValueError, match="levels other than bitsandbytes' dynamic map"):
        optimizer.load_state_dict(state)


def test_a_state_of_bitsandbytes_over_single_blocks_names_the_optimizer_that_loads_it() -> None:
    parameters = weights(torch.bfloat16)
    blocks = PartitionedOptimizer([{"params": parameters, "lr": 1e-2}], TheirAdamW8bit, id, rounds=True, seed=0)
    with pytest.raises(ValueError, match=r"set optimizer_type = bitsandbytes\.optim\.AdamW8bit"):
        AdamW8bit(parameters).load_state_dict(blocks.state_dict())


def test_bfloat16_weights_are_rounded_stochastically() -> None:
    weight = nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
    optimizer = AdamW8bit([weight], lr=1e-4, weight_decay=0.0)
    for _ in range(20):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert float(weight.detach().mean(dtype=torch.float32)) == pytest.approx(1 - 20e-4, abs=1e-4)


def test_a_masters_copy_gives_the_gradient_and_gets_the_new_value() -> None:
    master, plain = (nn.Parameter(normal(64, 64, seed=0)) for _ in range(2))
    half = nn.Parameter(master.detach().bfloat16())
    ours, theirs = AdamW8bit([master], copies={master: half}), AdamW8bit([plain])
    half.grad = normal(64, 64, seed=1).bfloat16()
    plain.grad = half.grad.float()
    ours.step()
    theirs.step()
    assert torch.equal(master, plain)
    assert torch.equal(half, master.bfloat16())


def test_the_clip_factor_scales_the_update() -> None:
    one, other = (nn.Parameter(normal(64, 64, seed=0)) for _ in range(2))
    scaled, plain = AdamW8bit([one], eps=1.0), AdamW8bit([other], eps=1.0)
    one.grad = normal(64, 64, seed=1)
    other.grad = one.grad / 2
    scaled.clip_factor = torch.tensor(0.5)
    scaled.step()
    plain.step()
    assert torch.equal(one, other)


def test_the_name_means_ours_unless_an_argument_is_only_bitsandbytes() -> None:
    options = OptimizerOptions(optimizer_type="adamw8bit", optimizer_args=["weight_decay=0.1"])
    optimizer = make_optimizer(options, [{"params": weights(), "lr": 0.5}], seed=7)
    assert type(optimizer) is AdamW8bit
    assert isinstance(optimizer.param_groups[0]["lr"], Tensor), "which a recorded step reads"
    assert description(optimizer, options) == "bitsandbytes.optim.adamw.AdamW8bit(weight_decay=0.1)"
    paged = OptimizerOptions(optimizer_type="AdamW8bit", optimizer_args=["min_8bit_size=16384"])
    assert type(make_optimizer(paged, [{"params": weights()}])) is TheirAdamW8bit
    assert class_names(options) == class_names(paged) == {"bitsandbytes.optim.adamw.AdamW8bit"}


def test_partitions_of_half_precision_weights_resume_exactly() -> None:
    def made() -> tuple[list[nn.Parameter], PartitionedOptimizer]:
        parameters = weights(torch.bfloat16)
        options = OptimizerOptions(optimizer_type="AdamW8bit", learning_rate=1e-2)
        groups = [{"params": parameters, "lr": 1e-2}]
        return parameters, PartitionedOptimizer(
            groups, lambda parts: make_optimizer(options, parts, rounding=True), id, rounds=False, seed=3
        )

    whole, optimizer = made()
    learn(optimizer, whole, range(2))
    rest, resumed = made()
    set_to(rest, whole)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    learn(optimizer, whole, range(2, 4))
    learn(resumed, rest, range(2, 4))
    assert all(torch.equal(one, other) for one, other in zip(rest, whole, strict=True))


def test_300_steps_end_at_the_loss_of_adamw() -> None:
    """A layer is trained to the outputs of a second one, with moments in 8 bits by both and in float32."""

    def loss(make: Any) -> float:
        layer, target = (nn.Linear(128, 64) for _ in range(2))
        with torch.no_grad():
            layer.weight.copy_(normal(64, 128, seed=0) / 8)
            target.weight.copy_(normal(64, 128, seed=1) / 8)
            target.bias.copy_(layer.bias.zero_())
        optimizer = make(layer.parameters(), lr=3e-3, weight_decay=0.0)
        total = 0.0
        for step in range(300):
            inputs = normal(32, 128, seed=step)
            value = (layer(inputs) - target(inputs)).square().mean()
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            total = total * (step > 270) + float(value.detach())
        return total

    assert loss(AdamW8bit) == pytest.approx(loss(TheirAdamW8bit), rel=0.02)
    assert loss(AdamW8bit) == pytest.approx(loss(RoundingAdamW), rel=0.3)
