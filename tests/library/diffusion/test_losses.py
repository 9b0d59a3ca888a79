"""Losses and their weights agree with the numbers of the scripts that people compare with."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sd_scripts.library.diffusion.losses import apply_snr_weighting, element_loss, huber_c_at, per_sample_loss
from sd_scripts.library.diffusion.noise import NoiseSchedule, noise_schedule
from sd_scripts.options.optimization.loss import LossOptions

NUMBERS = json.loads((Path(__file__).parents[2] / "reference" / "fixtures_numeric.json").read_text())
WEIGHTS = NUMBERS["sdxl_loss_weights_t0_1_100_500_900_999"]
TIMESTEPS = torch.tensor([0, 1, 100, 500, 900, 999])
CPU = torch.device("cpu")


@pytest.fixture
def schedule() -> NoiseSchedule:
    return noise_schedule(CPU)


@pytest.mark.parametrize(
    ("name", "options", "v_parameterization"),
    [
        ("min_snr5_vFalse", LossOptions(min_snr_gamma=5.0), False),
        ("min_snr5_vTrue", LossOptions(min_snr_gamma=5.0), True),
        ("debiased_vFalse", LossOptions(debiased_estimation_loss=True), False),
        ("debiased_vTrue", LossOptions(debiased_estimation_loss=True), True),
        ("scale_v_pred", LossOptions(scale_v_pred_loss_like_noise_pred=True), True),
        ("v_pred_like_0.5", LossOptions(v_pred_like_loss=0.5), False),
    ],
)
def test_a_weight_agrees_with_the_reference(
    schedule: NoiseSchedule, name: str, options: LossOptions, v_parameterization: bool
) -> None:
    weighed = apply_snr_weighting(torch.ones(6), schedule.snr[TIMESTEPS], options, v_parameterization)
    torch.testing.assert_close(weighed, torch.tensor(WEIGHTS[name]), rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", ["constant", "exponential", "snr"])
def test_the_huber_width_agrees_with_the_reference(schedule: NoiseSchedule, name: str) -> None:
    options = LossOptions(huber_schedule=name, huber_c=0.1, huber_scale=2.0)
    expected = torch.tensor(WEIGHTS[f"huber_c_{name}_scale2"])
    torch.testing.assert_close(
        huber_c_at(TIMESTEPS / 1000, options, schedule.sigmas[TIMESTEPS]), expected, rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("loss_type", ["l2", "l1", "huber", "smooth_l1"])
def test_an_element_loss_agrees_with_the_reference(loss_type: str) -> None:
    difference = torch.tensor([0.5, -1.0, 2.0, 0.0])
    loss = element_loss(difference, torch.zeros(4), loss_type, torch.full((4,), 0.1))
    torch.testing.assert_close(loss, torch.tensor(WEIGHTS["losses_huber_c_0.1"][loss_type]), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("index", [0, 1, 100, 500, 900, 999])
def test_the_schedule_agrees_with_the_reference(schedule: NoiseSchedule, index: int) -> None:
    assert schedule.snr[index].item() == pytest.approx(NUMBERS["sdxl_snr"][str(index)], rel=1e-4)
    terminal = noise_schedule(CPU, zero_terminal_snr=True)
    expected = NUMBERS["zero_terminal_snr"]["alphas_cumprod"][str(index)]
    assert terminal.alphas_cumprod[index].item() == pytest.approx(expected, rel=1e-4)
    assert torch.equal(terminal.snr, schedule.snr), "weights keep the table from before"


def test_at_zero_terminal_snr_the_last_timestep_is_pure_noise_and_its_velocity_the_image() -> None:
    schedule = noise_schedule(CPU, zero_terminal_snr=True)
    latents, noise = torch.randn(2, 1, 4, 8, 8).unbind()
    last = torch.tensor([999])
    assert torch.equal(schedule.add_noise(latents, noise, last), noise)
    assert torch.equal(schedule.velocity(latents, noise, last), -latents)
    every_option = LossOptions(
        loss_type="huber", huber_schedule="snr", min_snr_gamma=5.0, debiased_estimation_loss=True
    )
    assert losses(noise, latents, schedule, every_option, last).isfinite().all()


def test_noisy_latents_and_velocity_turn_back_into_the_image(schedule: NoiseSchedule) -> None:
    latents, noise = torch.randn(2, 3, 4, 8, 8).unbind()
    t = torch.tensor([1, 400, 998])
    kept = schedule.alphas_cumprod[t].view(-1, 1, 1, 1)
    noisy, velocity = schedule.add_noise(latents, noise, t), schedule.velocity(latents, noise, t)
    torch.testing.assert_close(kept.sqrt() * noisy - (1 - kept).sqrt() * velocity, latents, rtol=1e-4, atol=1e-5)


def losses(
    prediction: Tensor,
    target: Tensor,
    schedule: NoiseSchedule,
    options: LossOptions | None = None,
    timesteps: Tensor | None = None,
    mask: Tensor | None = None,
    weight: float = 1.0,
) -> Tensor:
    count = len(prediction)
    return per_sample_loss(
        prediction,
        target,
        timesteps if timesteps is not None else torch.full((count,), 500),
        schedule,
        options or LossOptions(),
        loss_weight=torch.full((count,), weight),
        mask=mask,
    )


def test_the_plain_loss_is_the_mean_square_of_each_image(schedule: NoiseSchedule) -> None:
    prediction, target = torch.randn(2, 3, 4, 8, 8).unbind()
    expected = ((prediction - target) ** 2).flatten(1).mean(1)
    torch.testing.assert_close(losses(prediction, target, schedule), expected)
    torch.testing.assert_close(losses(prediction, target, schedule, weight=0.5), expected / 2)


def test_masked_areas_count_nothing_and_the_rest_is_not_scaled_up(schedule: NoiseSchedule) -> None:
    prediction, target = torch.ones(1, 4, 8, 8), torch.zeros(1, 4, 8, 8)
    mask = torch.zeros(1, 1, 64, 64)
    mask[..., :32] = 1
    assert losses(prediction, target, schedule, mask=mask).item() == pytest.approx(0.5)


@pytest.mark.parametrize("loss_type", ["l2", "l1", "huber", "smooth_l1"])
def test_a_clip_costs_the_mean_of_its_frames(schedule: NoiseSchedule, loss_type: str) -> None:
    """The mask (B, 1, H, W) covers each frame alike."""
    latents, noise = torch.randn(2, 2, 4, 3, 8, 8).unbind()  # (B, C, frames, h, w)
    t, options = torch.tensor([100, 900]), LossOptions(loss_type=loss_type)  # type: ignore[arg-type]
    prediction, mask = schedule.add_noise(latents, noise, t), torch.rand(2, 1, 64, 64)
    whole = losses(prediction, noise, schedule, options, mask=mask, timesteps=t)
    frames = [
        losses(schedule.add_noise(one, grain, t), grain, schedule, options, mask=mask, timesteps=t)
        for one, grain in zip(latents.unbind(2), noise.unbind(2), strict=True)
    ]
    torch.testing.assert_close(whole, torch.stack(frames).mean(0))


def test_the_loss_is_one_graph_and_float32_for_bf16_predictions(schedule: NoiseSchedule) -> None:
    options = LossOptions(loss_type="smooth_l1", min_snr_gamma=5.0, debiased_estimation_loss=True)
    prediction, target = torch.randn(2, 3, 4, 8, 8).unbind()
    compiled = torch.compile(losses, backend="aot_eager", fullgraph=True)(
        prediction.bfloat16(), target, schedule, options
    )
    assert compiled.dtype == torch.float32
    torch.testing.assert_close(compiled, losses(prediction.bfloat16(), target, schedule, options))
