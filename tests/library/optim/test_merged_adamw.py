"""MergedAdamW: torch's AdamW in one launch for parameters that lie side by side."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from sd_scripts.library.optim.merged_adamw import MergedAdamW

SHAPES = [(4, 3), (5,), (2, 7), (6, 1)]
HOW = {"fused": True, "weight_decay": 0.1}


def side_by_side(values: Tensor, gradients: Tensor) -> list[nn.Parameter]:
    """Return parameters of SHAPES that are views of both buffers, in an order other than in memory."""
    sizes = [torch.Size(shape).numel() for shape in SHAPES]
    pairs = zip(values.split(sizes), gradients.split(sizes), SHAPES, strict=True)
    made = []
    for value, gradient, shape in pairs:
        made.append(nn.Parameter(value.view(shape)))
        made[-1].grad = gradient.view(shape)
    return [made[n] for n in (2, 0, 3, 1)]


def fresh() -> tuple[Tensor, Tensor, list[nn.Parameter]]:
    values, gradients = torch.randn(37, generator=torch.Generator().manual_seed(0)), torch.zeros(37)
    return values, gradients, side_by_side(values, gradients)


def learn(optimizer: torch.optim.Optimizer, gradients: Tensor, steps: range) -> None:
    for step in steps:
        gradients.copy_(torch.randn(37, generator=torch.Generator().manual_seed(step)))
        optimizer.step()


def assert_alike(ours: Tensor, theirs: Tensor) -> None:
    """Equal but for the last bit: a CPU computes the last values of a tensor without vector instructions."""
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


def runs_of(optimizer: MergedAdamW) -> list[int]:
    return [value.numel() for value in optimizer._runs[0].values]


def test_the_merged_adamw_computes_torchs_update_in_one_piece() -> None:
    ours, theirs = fresh(), fresh()
    merged, plain = MergedAdamW(ours[2], **HOW), torch.optim.AdamW(theirs[2], **HOW)
    for optimizer, (_, gradients, _) in ((merged, ours), (plain, theirs)):
        learn(optimizer, gradients, range(5))
    assert_alike(ours[0], theirs[0])
    assert runs_of(merged) == [37]
    for own, other in zip(merged.state_dict()["state"].values(), plain.state_dict()["state"].values(), strict=True):
        for name in ("step", "exp_avg", "exp_avg_sq"):
            assert_alike(own[name], other[name])


def test_states_of_both_can_be_exchanged() -> None:
    ours, theirs = fresh(), fresh()
    merged, plain = MergedAdamW(ours[2], **HOW), torch.optim.AdamW(theirs[2], **HOW)
    learn(plain, theirs[1], range(3))
    learn(merged, ours[1], range(2))
    ours[0].copy_(theirs[0])
    merged.load_state_dict(deepcopy(plain.state_dict()))
    for optimizer, (_, gradients, _) in ((merged, ours), (plain, theirs)):
        learn(optimizer, gradients, range(3, 6))
    assert_alike(ours[0], theirs[0])
    assert runs_of(merged) == [37]


def test_parameters_without_gradient_or_with_a_different_step_count_are_updated_apart() -> None:
    ours, theirs = fresh(), fresh()
    merged, plain = MergedAdamW(ours[2], **HOW), torch.optim.AdamW(theirs[2], **HOW)
    for optimizer, (_, gradients, parameters) in ((merged, ours), (plain, theirs)):
        last, parameters[1].grad = parameters[1].grad, None  # the first in memory
        learn(optimizer, gradients, range(2))
        parameters[1].grad = last
        learn(optimizer, gradients, range(2, 4))
    assert_alike(ours[0], theirs[0])
    assert runs_of(merged) == [12, 5, 14, 6]


def test_gradients_may_be_freed_between_updates() -> None:
    ours, theirs = fresh(), fresh()
    merged, plain = MergedAdamW(ours[2], **HOW), torch.optim.AdamW(theirs[2], **HOW)
    for optimizer, (_, gradients, _) in ((merged, ours), (plain, theirs)):
        learn(optimizer, gradients, range(2))
        gradients.untyped_storage().resize_(0)
        gradients.untyped_storage().resize_(37 * 4)
        learn(optimizer, gradients, range(2, 4))
    assert_alike(ours[0], theirs[0])
