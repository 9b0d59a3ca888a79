"""Images while training: the same seed gives the same image, and training does not notice."""

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import EulerDiscreteScheduler

from sd_scripts.families.common.family import Components, TextOptions
from sd_scripts.families.sdxl.family import SDXL
from sd_scripts.families.sdxl.samplers import SAMPLERS, make_sampler
from sd_scripts.families.sdxl.sampling import prompt_captions, sample
from sd_scripts.families.sdxl.text import encode_text, tokenize
from sd_scripts.library.diffusion.noise import TIMESTEPS
from sd_scripts.options.generating.prompt_lines import MAX_STEPS, SamplePrompt
from tests.support.families.sdxl_pipeline import pipeline_of
from tests.support.miniatures import sdxl_settings

pytestmark = [
    pytest.mark.run,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # diffusers asks NumPy in an old way
]

PROMPT = {"prompt": "a red circle on a white background", "width": 64, "height": 72, "seed": 1, "steps": 4}


@pytest.fixture(scope="module")
def components(miniature: Any) -> Components:
    return SDXL.open(sdxl_settings(miniature.checkpoint), torch.float32).load()


def make(components: Components, **changes: Any) -> np.ndarray:
    prompt, settings = SamplePrompt(**{**PROMPT, **changes}), sdxl_settings("model")
    with torch.no_grad():
        text = encode_text(components, tokenize(components, prompt_captions(prompt), TextOptions.of(settings)))
    return sample(components, prompt, text, settings).frames[0].numpy()


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_generates_an_image_decided_by_its_seed(components: Components, sampler: str) -> None:
    image = make(components, sampler=sampler)
    assert image.shape == (72, 64, 3)
    assert np.array_equal(make(components, sampler=sampler), image)
    assert not np.array_equal(make(components, sampler=sampler, seed=2), image)


def test_euler_matches_diffusers_with_the_same_noise(components: Components) -> None:
    scheduler = EulerDiscreteScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1
    )
    pipeline = pipeline_of(components, scheduler, force_zeros_for_empty_prompt=False, add_watermarker=False)
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
    ours = make(components, sampler="euler").astype(np.float32) / 255
    assert np.abs(ours - theirs).max() < 2 / 255


def test_k_euler_is_euler_and_sides_are_rounded_down_to_8(components: Components) -> None:
    assert np.array_equal(make(components, sampler="k_euler", width=71, height=79), make(components, sampler="euler"))


def test_scale_1_ignores_the_negative_prompt(components: Components) -> None:
    assert np.array_equal(make(components, scale=1, negative_prompt="a blue square"), make(components, scale=1))
    assert not np.array_equal(make(components, negative_prompt="a blue square"), make(components))


def test_sampling_leaves_random_state_modes_and_gradients_of_training_unchanged(components: Components) -> None:
    components.denoiser.train()
    components.denoiser.conv_in.eval()
    before = torch.get_rng_state()
    make(components, seed=None, sampler="euler_a")
    assert torch.equal(torch.get_rng_state(), before)
    assert components.denoiser.training
    assert not components.denoiser.conv_in.training
    assert not components.vae.training
    assert all(p.grad is None for p in components.denoiser.parameters())
    components.denoiser.eval()


def test_compiled_blocks_sample_the_same_image(miniature: Any) -> None:
    compiled = SDXL.open(sdxl_settings(miniature.checkpoint), torch.float32).load()
    eager = make(compiled)
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    for block in compiled.denoiser.mid_block.resnets:
        block.compile(backend=backend)
    assert np.array_equal(make(compiled), eager)
    assert graphs


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_largest_number_of_steps_works(name: str) -> None:
    sampler = make_sampler(name, velocity=False, zero_terminal_snr=False)
    sampler.set_timesteps(MAX_STEPS)
    assert 0 <= float(sampler.timesteps.min()) <= float(sampler.timesteps.max()) < TIMESTEPS


def test_an_unknown_sampler_is_reported(components: Components) -> None:
    with pytest.raises(ValueError, match="sample_sampler: 'best' is not one of ddim, "):
        make(components, sampler="best")
