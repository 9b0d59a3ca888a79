"""Noise and timesteps come from the generator of the step and nowhere else."""

import pytest
import torch

from sd_scripts.library.diffusion.noise import draw_noise, draw_timesteps, perturb
from sd_scripts.options.optimization.loss import NoiseOptions

LATENTS = torch.full((2, 4, 64, 48), 0.5)


def step(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def all_kinds() -> NoiseOptions:
    return NoiseOptions(
        noise_offset=0.1,
        noise_offset_random_strength=True,
        adaptive_noise_scale=0.05,
        multires_noise_iterations=6,
        ip_noise_gamma=0.1,
        ip_noise_gamma_random_strength=True,
    )


def test_the_same_step_draws_the_same_noise_whatever_else_was_drawn_before() -> None:
    first = draw_noise(LATENTS, all_kinds(), step())
    torch.rand(100)
    assert torch.equal(draw_noise(LATENTS, all_kinds(), step()), first)
    assert not torch.equal(draw_noise(LATENTS, all_kinds(), step(2)), first)


def test_plain_noise_is_the_generators_first_draw() -> None:
    assert torch.equal(draw_noise(LATENTS, NoiseOptions(), step()), torch.randn(2, 4, 64, 48, generator=step()))


def test_an_offset_moves_each_channel_as_a_whole() -> None:
    plain = draw_noise(LATENTS, NoiseOptions(), step())
    moved = draw_noise(LATENTS, NoiseOptions(noise_offset=0.1), step()) - plain
    torch.testing.assert_close(moved, moved[:, :, :1, :1].expand_as(moved), rtol=0, atol=1e-5)
    adaptive = NoiseOptions(noise_offset=0.1, adaptive_noise_scale=0.2)
    twice = draw_noise(LATENTS, adaptive, step()) - plain  # 0.1 + 0.2 · |mean 0.5| = 0.2
    torch.testing.assert_close(twice, 2 * moved, rtol=0, atol=1e-5)


def test_an_adaptive_scale_never_makes_the_offset_negative() -> None:
    options = NoiseOptions(noise_offset=0.1, adaptive_noise_scale=-10.0)
    assert torch.equal(draw_noise(LATENTS, options, step()), draw_noise(LATENTS, NoiseOptions(), step()))


def test_a_random_offset_strength_is_drawn_uniformly_below_noise_offset_for_each_image() -> None:
    options, generator = NoiseOptions(noise_offset=0.1, noise_offset_random_strength=True), step()
    plain = torch.randn(LATENTS.shape, generator=generator)
    strength = 0.1 * torch.rand(2, 1, 1, 1, generator=generator)
    offset = torch.randn(2, 4, 1, 1, generator=generator)
    torch.testing.assert_close(draw_noise(LATENTS, options, step()), plain + strength * offset)


def test_pyramid_noise_is_coarse_and_of_unit_deviation() -> None:
    noise = draw_noise(torch.zeros(1, 4, 128, 128), NoiseOptions(multires_noise_iterations=8), step())
    assert noise.std().item() == pytest.approx(1)
    coarse = torch.nn.functional.avg_pool2d(noise, 16)
    assert coarse.std() > 1.2 / 16, "white noise would have 1/16"


def test_a_pyramid_on_tiny_latents_ends_at_one_pixel() -> None:
    assert draw_noise(torch.zeros(1, 4, 2, 3), NoiseOptions(multires_noise_iterations=10), step()).shape == (1, 4, 2, 3)


def test_input_perturbation_scales_the_added_noise_by_gamma() -> None:
    noise = draw_noise(LATENTS, NoiseOptions(), step())
    assert perturb(noise, NoiseOptions(), step()) is noise
    change = perturb(noise, NoiseOptions(ip_noise_gamma=0.1), step(3)) - noise
    assert change.std().item() == pytest.approx(0.1, rel=0.05)


def test_timesteps_stay_within_their_bounds() -> None:
    drawn = draw_timesteps(10_000, NoiseOptions(min_timestep=200, max_timestep=204), step())
    assert drawn.unique().tolist() == [200, 201, 202, 203]
    assert draw_timesteps(3, NoiseOptions(min_timestep=7, max_timestep=7), step()).tolist() == [7, 7, 7]
    everything = draw_timesteps(100_000, NoiseOptions(), step())
    assert (everything.min(), everything.max()) == (0, 999)


def test_bounds_without_a_timestep_are_reported() -> None:
    with pytest.raises(ValueError, match="min_timestep, max_timestep: 500 to 100"):
        draw_timesteps(1, NoiseOptions(min_timestep=500, max_timestep=100), step())


def test_a_clip_has_one_offset_and_a_pyramid_within_its_frames() -> None:
    clip = torch.full((2, 4, 3, 32, 24), 0.5)
    plain = draw_noise(clip, NoiseOptions(), step())
    moved = draw_noise(clip, all_kinds(), step())
    assert moved.shape == clip.shape
    offset = draw_noise(clip, NoiseOptions(noise_offset=0.1, noise_offset_random_strength=True), step()) - plain
    torch.testing.assert_close(offset, offset[:, :, :1, :1, :1].expand_as(offset), rtol=0, atol=1e-5)
    pyramid = draw_noise(clip, NoiseOptions(multires_noise_iterations=4), step())
    coarse = torch.nn.functional.avg_pool3d(pyramid, (1, 8, 8))
    assert coarse.std() > 1.2 / 8, "white noise would have 1/8"
    assert coarse.diff(dim=2).std() > 0.1, "frames have grain of their own"
