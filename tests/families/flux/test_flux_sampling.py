"""Images of FLUX.1 while training: diffusers' own for the same noise, and nothing of the training is touched."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sd_scripts.families.common.family import Components, TextOptions
from sd_scripts.families.common.sampling import on_device
from sd_scripts.families.flux.card import CARD
from sd_scripts.families.flux.model import FluxTransformer
from sd_scripts.families.flux.sampling import prompt_captions, sample
from sd_scripts.families.flux.text import encode_text, tokenize
from sd_scripts.families.flux.tiny import tiny_modules
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.testing.miniature import clip_tokenizer, t5_tokenizer
from tests.support.families.flux import flux_settings
from tests.support.families.flux_pipeline import pipeline_of

pytestmark = pytest.mark.run

T5_LENGTH = 16
PROMPT = {"prompt": "a red circle", "width": 64, "height": 80, "seed": 1, "steps": 4, "scale": 1.0}


@pytest.fixture(scope="module")
def components() -> Components:
    clip = clip_tokenizer()
    modules = tiny_modules(len(clip))
    encoders = [modules["text_encoder1"], modules["text_encoder2"]]
    for module in modules.values():
        module.eval().requires_grad_(False)
    return Components(
        denoiser=modules["denoiser"],
        vae=modules["vae"],
        text_encoders=encoders,
        tokenizers=[clip, t5_tokenizer()],
        source="tiny",
        extras={"variant": "dev", "t5_length": T5_LENGTH, "apply_t5_attn_mask": False},
    )


@pytest.fixture(scope="module")
def pipeline(components: Components) -> Any:
    return pipeline_of(components)


def of_diffusers(components: Components, **arguments: Any) -> np.ndarray:
    pipeline: Any = pipeline_of(components)
    return pipeline(
        PROMPT["prompt"],
        width=64,
        height=80,
        num_inference_steps=4,
        max_sequence_length=T5_LENGTH,
        generator=torch.Generator().manual_seed(1),
        output_type="np",
        **arguments,
    ).images[0]


def make(components: Components, **changes: Any) -> np.ndarray:
    prompt, settings = SamplePrompt(**{**PROMPT, **changes}), flux_settings()
    with torch.no_grad():
        text = encode_text(components, tokenize(components, prompt_captions(prompt), TextOptions.of(settings)))
    return sample(components, prompt, text, settings).frames[0].numpy()


@pytest.mark.parametrize(
    ("guidance", "scale", "negative"), [(3.5, 1.0, ""), (1.0, 1.0, ""), (3.5, 3.0, "a blue square")]
)
def test_an_image_of_dev_matches_diffusers_with_the_same_noise(
    components: Components, guidance: float, scale: float, negative: str
) -> None:
    theirs = of_diffusers(components, negative_prompt=negative or None, true_cfg_scale=scale, guidance_scale=guidance)
    ours = make(components, guidance=guidance, scale=scale, negative_prompt=negative)
    assert np.abs(ours / 255 - theirs).max() < 2 / 255


def test_an_image_of_schnell_matches_diffusers_with_the_same_noise(components: Components) -> None:
    transformer = FluxTransformer(replace(components.denoiser.shape, guidance=False)).eval().requires_grad_(False)
    weights = components.denoiser.state_dict()
    transformer.load_state_dict({name: weights[name] for name in transformer.state_dict()})
    schnell = replace(components, denoiser=transformer, extras={**components.extras, "variant": "schnell"})
    assert np.abs(make(schnell) / 255 - of_diffusers(schnell)).max() < 2 / 255


def test_seed_guidance_and_negative_prompt_change_the_image(components: Components) -> None:
    image = make(components)
    assert image.shape == (80, 64, 3)
    assert np.array_equal(make(components), image)
    assert not np.array_equal(make(components, seed=2), image)
    assert not np.array_equal(make(components, guidance=20.0), image)
    assert not np.array_equal(make(components, scale=3.0, negative_prompt="a blue square"), image)


def test_an_empty_negative_prompt_has_no_effect(components: Components) -> None:
    assert np.array_equal(make(components, scale=7.5), make(components))
    assert np.array_equal(make(components, negative_prompt="a blue square"), make(components))


def test_sides_are_rounded_down_to_16(components: Components) -> None:
    assert np.array_equal(make(components, width=79, height=95), make(components))


def test_a_prompt_falls_back_to_the_defaults() -> None:
    said = CARD.sample_defaults
    assert (said.width, said.height, said.steps, said.guidance, said.scale) == (512, 512, 20, 3.5, 1.0)


def test_sampling_leaves_random_state_modes_and_gradients_of_training_unchanged(components: Components) -> None:
    components.denoiser.train()
    components.denoiser.img_in.eval()
    before = torch.get_rng_state()
    make(components, seed=None)
    assert torch.equal(torch.get_rng_state(), before)
    assert components.denoiser.training
    assert not components.denoiser.img_in.training
    assert not components.vae.training
    assert all(p.grad is None for p in components.denoiser.parameters())
    components.denoiser.eval()


def test_compiled_blocks_sample_the_same_image(components: Components) -> None:
    eager, graphs = make(components), []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    for block in components.denoiser.double_blocks:
        block.compile(backend=backend)
    assert np.array_equal(make(components), eager)
    assert graphs


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: weights go there and come back")
def test_modules_return_from_the_gpu_with_their_weights_in_place(components: Components) -> None:
    on_the_cpu = make(components)
    before = [(tensor, tensor.data_ptr(), tensor.clone()) for tensor in components.vae.parameters()]
    components.denoiser.cuda()
    on_the_gpu = make(components)
    components.denoiser.cpu()
    assert np.abs(on_the_gpu.astype(int) - on_the_cpu.astype(int)).max() <= 4
    for tensor, address, values in before:
        assert tensor.data_ptr() == address
        assert torch.equal(tensor, values)


def test_a_failure_while_a_module_is_on_the_gpu_restores_it() -> None:
    module = torch.nn.Linear(2, 2)
    address = module.weight.data_ptr()
    with pytest.raises(RuntimeError, match="incompatible tensor type"), on_device(module, torch.device("meta")):
        pass
    assert module.weight.data_ptr() == address
    assert not module.weight.is_meta
