"""Sigmas, their schedules and weights agree with the numbers of the scripts that people compare with."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import Tensor

from sd_scripts.families.cards.noise_levels import shift_of
from sd_scripts.library.diffusion.flow_timesteps import (
    draw_sigmas,
    loss_weights,
    sampling_sigmas,
    shifted,
    within_bounds,
)
from sd_scripts.options.optimization.flow import FlowOptions

NUMBERS = json.loads((Path(__file__).parents[2] / "reference" / "fixtures_numeric.json").read_text())
DRAWN = NUMBERS["flux_timesteps_seed1234_cpu_b4_latent128x96"]
TOKENS = 128 * 96 // 4


def draw(count: int = 4, seed: int = 1234, tokens: int = TOKENS, **options: Any) -> Tensor:
    return draw_sigmas(count, FlowOptions(**options), tokens, torch.Generator().manual_seed(seed))


def same(found: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(found, torch.tensor(expected), rtol=2e-7, atol=0)


@pytest.mark.parametrize("name", DRAWN)
def test_every_sampling_gives_the_sigmas_of_the_reference(name: str) -> None:
    how, weighting = name.split("/")
    sigmas = draw(timestep_sampling=how, weighting_scheme=weighting)
    same(sigmas, DRAWN[name]["sigmas"])
    same(1000 * sigmas, DRAWN[name]["timesteps"])


def test_the_sigma_schedule_matches_the_reference() -> None:
    schedule = shifted((1000 - torch.arange(1000)) / 1000, 3.0)
    same(schedule[:5], NUMBERS["flow_sched_shift3"]["sigmas_first5"])
    same(schedule[-5:], NUMBERS["flow_sched_shift3"]["sigmas_last5"])
    same(1000 * schedule[:5], NUMBERS["flow_sched_shift3"]["timesteps_first5"])


def test_drawn_sigmas_are_steps_of_that_schedule() -> None:
    schedule = shifted((1000 - torch.arange(1000)) / 1000, 3.0)
    for scheme in ("uniform", "logit_normal", "mode"):
        assert torch.isin(draw(2000, weighting_scheme=scheme), schedule).all()


@pytest.mark.parametrize("mode_scale", [-5.0, 1.29, 5.0])
def test_a_density_beyond_the_schedule_ends_at_its_ends(mode_scale: float) -> None:
    sigmas = draw(2000, weighting_scheme="mode", mode_scale=mode_scale)
    assert sigmas.min() > 0
    assert sigmas.max() <= 1


def test_sampling_sigmas_match_the_reference() -> None:
    same(sampling_sigmas(20, shift_of(4096)), NUMBERS["flux_schedule_20_4096"])


@pytest.mark.parametrize("tokens", [256, 1024, 4096, 5000])
def test_sampling_sigmas_match_diffusers(tokens: int) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    mu = 0.5 + (tokens - 256) * 0.65 / 3840
    scheduler.set_timesteps(sigmas=torch.linspace(1, 1 / 7, 7).tolist(), mu=mu)
    torch.testing.assert_close(sampling_sigmas(7, shift_of(tokens)), scheduler.sigmas, rtol=1e-5, atol=0)


def test_without_a_shift_sampling_steps_are_even() -> None:
    torch.testing.assert_close(sampling_sigmas(4, 1.0), torch.tensor([1.0, 0.75, 0.5, 0.25, 0.0]))


def test_bounds_squeeze_the_range_and_leave_it_whole_when_they_are_not_set() -> None:
    sigmas = draw(1000, timestep_sampling="sigmoid")
    assert torch.equal(within_bounds(1000 * sigmas, 0, 1000), 1000 * sigmas)
    squeezed = within_bounds(sigmas, 200, 600)
    assert 0.2 <= squeezed.min() < squeezed.max() <= 0.6
    assert squeezed.mean().item() == pytest.approx(0.4, abs=0.01)
    same(within_bounds(sigmas[:2], 300, 300), [0.3, 0.3])


def test_weights_follow_their_scheme() -> None:
    sigmas = torch.tensor([0.25, 0.5, 1.0])
    same(loss_weights(sigmas, "sigma_sqrt"), [16.0, 4.0, 1.0])
    torch.testing.assert_close(loss_weights(sigmas, "cosmap"), torch.tensor([3.2, 4.0, 2.0]) / torch.pi)
    for scheme in ("none", "uniform", "logit_normal", "mode"):
        assert loss_weights(sigmas, scheme).tolist() == [1, 1, 1]
    assert loss_weights(torch.zeros(1), "sigma_sqrt").isfinite().all()


def test_sigmas_are_float32_and_decided_by_the_generator_alone() -> None:
    first = draw(timestep_sampling="flux_shift")
    torch.rand(10)
    assert first.dtype == torch.float32
    assert torch.equal(draw(timestep_sampling="flux_shift"), first)
    assert not torch.equal(draw(timestep_sampling="flux_shift", seed=2), first)


def test_larger_images_are_noisier_with_flux_shift() -> None:
    assert (draw(timestep_sampling="flux_shift", tokens=4096) > draw(timestep_sampling="flux_shift", tokens=256)).all()
