"""Pictures while training: the same seed gives the same picture, and training does not notice."""

from typing import Any

import numpy as np
import pytest
import torch
from conftest import sdxl_settings
from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline

from sd_scripts.families.family import Parts
from sd_scripts.families.sdxl.load import load
from sd_scripts.families.sdxl.samplers import SAMPLERS, make_sampler
from sd_scripts.families.sdxl.sampling import sample
from sd_scripts.library.prompts import SamplePrompt
from sd_scripts.library.schedules import TIMESTEPS
from sd_scripts.options.prompt_lines import MOST_STEPS

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # diffusers asks NumPy in an old way

PROMPT = {"prompt": "a red circle on a white background", "width": 64, "height": 72, "seed": 1, "steps": 4}


@pytest.fixture(scope="module")
def parts(miniature: Any) -> Parts:
    return load(sdxl_settings(miniature.checkpoint), torch.float32)


def make(parts: Parts, **changes: Any) -> np.ndarray:
    return np.asarray(sample(parts, SamplePrompt(**{**PROMPT, **changes}), sdxl_settings("model")))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_makes_a_picture_that_its_seed_decides(parts: Parts, sampler: str) -> None:
    picture = make(parts, sampler=sampler)
    assert picture.shape == (72, 64, 3)
    assert np.array_equal(make(parts, sampler=sampler), picture)
    assert not np.array_equal(make(parts, sampler=sampler, seed=2), picture)


def test_euler_is_what_diffusers_makes_of_the_same_noise(parts: Parts) -> None:
    scheduler = EulerDiscreteScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1
    )
    pipeline = StableDiffusionXLPipeline(
        vae=parts.vae,
        text_encoder=parts.text_encoders[0],
        text_encoder_2=parts.text_encoders[1],
        tokenizer=parts.tokenizers[0],
        tokenizer_2=parts.tokenizers[1],
        unet=parts.denoiser,
        scheduler=scheduler,
        force_zeros_for_empty_prompt=False,
        add_watermarker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    theirs = pipeline(
        PROMPT["prompt"],
        width=64,
        height=72,
        num_inference_steps=4,
        guidance_scale=7.5,
        generator=torch.Generator().manual_seed(1),
        output_type="np",
    ).images[0]
    ours = make(parts, sampler="euler").astype(np.float32) / 255
    assert np.abs(ours - theirs).max() < 2 / 255


def test_k_euler_is_euler_and_sides_are_rounded_down_to_8(parts: Parts) -> None:
    assert np.array_equal(make(parts, sampler="k_euler", width=71, height=79), make(parts, sampler="euler"))


def test_scale_1_reads_no_negative_prompt(parts: Parts) -> None:
    assert np.array_equal(make(parts, scale=1, negative_prompt="a blue square"), make(parts, scale=1))
    assert not np.array_equal(make(parts, negative_prompt="a blue square"), make(parts))


def test_random_numbers_modes_and_gradients_of_the_training_are_untouched(parts: Parts) -> None:
    parts.denoiser.train()
    parts.denoiser.conv_in.eval()
    before = torch.get_rng_state()
    make(parts, seed=None, sampler="euler_a")
    assert torch.equal(torch.get_rng_state(), before)
    assert parts.denoiser.training
    assert not parts.denoiser.conv_in.training
    assert not parts.vae.training
    assert all(p.grad is None for p in parts.denoiser.parameters())
    parts.denoiser.eval()


def test_compiled_blocks_sample_without_graphs_of_their_own(miniature: Any) -> None:
    compiled = load(sdxl_settings(miniature.checkpoint), torch.float32)
    eager = make(compiled)
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    for block in compiled.denoiser.mid_block.resnets:
        block.compile(backend=backend)
    assert np.array_equal(make(compiled), eager)
    assert graphs == []


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_most_steps_that_a_prompt_may_have_are_none_too_many(name: str) -> None:
    sampler = make_sampler(name, velocity=False, zero_terminal_snr=False)
    sampler.set_timesteps(MOST_STEPS)
    assert 0 <= float(sampler.timesteps.min()) <= float(sampler.timesteps.max()) < TIMESTEPS


def test_an_unknown_sampler_is_told(parts: Parts) -> None:
    with pytest.raises(ValueError, match="sample_sampler: 'best' is not one of ddim, "):
        make(parts, sampler="best")
