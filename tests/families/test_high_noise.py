"""Timesteps of batches that are trained at two sizes: each alone is distributed as without the option."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.families.cards.registry import card_of, cards
from sd_scripts.families.common.family import family_of
from sd_scripts.families.common.objective import HighNoise, flow_timesteps
from sd_scripts.library.seeds import seed_from
from sd_scripts.planning.trained_shapes import share_at_high_noise
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings
from tests.support.data import make_folder
from tests.support.families.flux import batch_of
from tests.support.training import equal, train

BUCKET = Extent(1024, 1024)
FAMILIES = [card.name for card in cards() if card.has("smaller_at_high_noise")]
WAYS: list[tuple[str, dict[str, Any]]] = [
    ("flux", {"timestep_sampling": "sigma", "discrete_flow_shift": 1.0}),
    ("flux", {"timestep_sampling": "flux_shift"}),
    ("flux", {"timestep_sampling": "uniform", "min_timestep": 200, "max_timestep": 900}),
    ("flux", {"timestep_sampling": "shift", "min_timestep": 300, "preserve_distribution_shape": True}),
    ("flux", {"weighting_scheme": "logit_normal", "logit_mean": 0.4}),
    ("flux", {"weighting_scheme": "mode"}),
    ("flux2", {"timestep_sampling": "sigmoid", "sigmoid_scale": 1.5}),
    ("qwen_image", {"timestep_sampling": "logsnr", "logit_mean": -1.0}),
    ("qwen_image", {"timestep_sampling": "qinglong_qwen"}),
    ("krea2", {"timestep_sampling": "krea2_shift"}),
]


def high_noise_of(name: str, **values: Any) -> HighNoise:
    family = family_of(name)
    return family.high_noise(family.objective_options(Settings(script_for(name, "lora"), values)))


def distance(one: Tensor, other: Tensor) -> float:
    """Return Kolmogorov and Smirnov's statistic: the largest difference of the two distribution functions."""
    places = torch.cat([one, other]).sort().values
    shares = [torch.searchsorted(x.sort().values, places, right=True) / len(x) for x in (one, other)]
    return float((shares[0] - shares[1]).abs().max())


@pytest.mark.parametrize(("name", "values"), WAYS)
def test_a_timestep_is_distributed_as_without_the_option_and_those_of_a_batch_are_on_one_side(
    name: str, values: dict[str, Any]
) -> None:
    drawn = high_noise_of(name, **values)
    generator = torch.Generator().manual_seed(1)
    batches = []
    for number in range(1000):
        high = drawn.decides(BUCKET, seed_from(5, number))
        batches.append(drawn.timesteps(2, BUCKET, generator, high=high))
        assert bool((batches[-1] > 0.7).all()) == high
        assert bool((batches[-1] > 0.7).any()) == high
    usual = flow_timesteps(20_000, 64 * 64, drawn.options, generator, draw=drawn.draw)
    ours = torch.stack(batches)
    planned = share_at_high_noise(drawn.options.flow, drawn.options.noise, card_of(name), BUCKET)
    assert 0.1 < planned < 0.9, "both sides are drawn"
    assert float((usual > 0.7).float().mean()) == pytest.approx(planned, abs=0.012)
    for place in (0, 1):  # of a batch; the two depend on each other
        assert distance(ours[:, place], usual) < 1.63 * math.sqrt(1 / len(ours) + 1 / len(usual))


def test_a_timestep_at_highnoise_sigma_itself_is_trained_at_full_size() -> None:
    drawn = high_noise_of("flux", timestep_sampling="sigma", discrete_flow_shift=1.0)
    generator = torch.Generator().manual_seed(1)
    assert float(drawn.timesteps(2_000, BUCKET, generator, high=True).min()) == pytest.approx(0.701, abs=1e-6)
    assert float(drawn.timesteps(2_000, BUCKET, generator, high=False).max()) == pytest.approx(0.7, abs=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_timesteps_are_drawn_for_the_tokens_of_the_bucket_as_step_inputs_draws_them(name: str) -> None:
    family = family_of(name)
    ways = family.card.choices.get("timestep_sampling", ("sigmoid",))
    options = family.objective_options(Settings(script_for(name, "lora"), {"timestep_sampling": ways[0]}))
    bucket = Extent(256, 384)
    latents = torch.zeros(3, *family.latents.shape(bucket))
    generator = torch.Generator().manual_seed(3)
    inputs = family.step_inputs(batch_of(latents), latents, options, generator, None)
    again = torch.Generator().manual_seed(3)
    torch.randn(latents.shape, generator=again)
    tokens = family.card.plan.tokens(bucket.width, bucket.height, 1)
    assert torch.equal(inputs["timesteps"], flow_timesteps(3, tokens, options, again, draw=family.draw_timesteps))


@pytest.mark.run
def test_a_run_with_two_sizes_resumes_exactly_and_its_validation_is_as_without(
    any_miniature: Any, tmp_path: Path
) -> None:
    make_folder(tmp_path / "images/1_cat", [(128, 128)] * 5)
    values: dict[str, Any] = {
        **{"train_data_dir": tmp_path / "images", "resolution": "128,128", "max_train_steps": 6},
        **{"validation_split": 0.4, "validate_every_n_steps": 6, "learning_rate": 1e-3},
    }
    states = {"highnoise_resolution": "96", "save_state": True, "save_every_n_steps": 2}
    whole = train(any_miniature, tmp_path / "whole", **values, **states)
    assert whole.status == 0
    (started,) = whole.events_of("started")
    assert started["shapes"] == ["96x96x1", "128x128x1"]
    state = whole.output / "short-step00000002-state"
    resumed = train(any_miniature, tmp_path / "resumed", **values, **states, resume=state)
    assert resumed.losses == whole.losses[2:]
    assert equal(resumed.tensors(), whole.tensors())
    unchanged = {**values, "learning_rate": 1e-20}
    still = train(any_miniature, tmp_path / "still", **unchanged, highnoise_resolution="96")
    plain = train(any_miniature, tmp_path / "plain", **unchanged)
    assert still.losses != plain.losses
    assert still.events_of("validation")[0]["loss"] == plain.events_of("validation")[0]["loss"]
