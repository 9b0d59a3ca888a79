"""Pictures of FLUX.1 while training: diffusers' own for the same noise, and nothing of the training is touched."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flux_help import flux_settings
from flux_pipeline import pipeline_of

from sd_scripts.families.family import Parts
from sd_scripts.families.flux.model import FluxTransformer
from sd_scripts.families.flux.sampling import sample
from sd_scripts.families.flux.tiny import t5_tokenizer, tiny_modules
from sd_scripts.families.miniature import clip_tokenizer
from sd_scripts.families.sampling import lent
from sd_scripts.options.prompt_lines import SAMPLE_DEFAULTS, SamplePrompt

T5_LENGTH = 16
PROMPT = {"prompt": "a red circle", "width": 64, "height": 80, "seed": 1, "steps": 4, "scale": 1.0}


@pytest.fixture(scope="module")
def parts() -> Parts:
    clip = clip_tokenizer()
    modules = tiny_modules(len(clip))
    encoders = [modules.clip_l, modules.t5xxl]
    for module in (modules.transformer, modules.ae, *encoders):
        module.eval().requires_grad_(False)
    return Parts(
        denoiser=modules.transformer,
        vae=modules.ae,
        text_encoders=encoders,
        tokenizers=[clip, t5_tokenizer()],
        source="tiny",
        facts={"variant": "dev", "t5_length": T5_LENGTH, "apply_t5_attn_mask": False},
    )


@pytest.fixture(scope="module")
def pipeline(parts: Parts) -> Any:
    return pipeline_of(parts)


def of_diffusers(parts: Parts, **arguments: Any) -> np.ndarray:
    pipeline: Any = pipeline_of(parts)
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


def make(parts: Parts, **changes: Any) -> np.ndarray:
    return np.asarray(sample(parts, SamplePrompt(**{**PROMPT, **changes}), flux_settings()))


@pytest.mark.parametrize(
    ("guidance", "scale", "negative"), [(3.5, 1.0, ""), (1.0, 1.0, ""), (3.5, 3.0, "a blue square")]
)
def test_a_picture_of_dev_is_what_diffusers_makes_of_the_same_noise(
    parts: Parts, guidance: float, scale: float, negative: str
) -> None:
    theirs = of_diffusers(parts, negative_prompt=negative or None, true_cfg_scale=scale, guidance_scale=guidance)
    ours = make(parts, guidance=guidance, scale=scale, negative_prompt=negative)
    assert np.abs(ours / 255 - theirs).max() < 2 / 255


def test_a_picture_of_schnell_is_too(parts: Parts) -> None:
    transformer = FluxTransformer(replace(parts.denoiser.shape, guidance=False)).eval().requires_grad_(False)
    weights = parts.denoiser.state_dict()
    transformer.load_state_dict({name: weights[name] for name in transformer.state_dict()})
    schnell = replace(parts, denoiser=transformer, facts={**parts.facts, "variant": "schnell"})
    assert np.abs(make(schnell) / 255 - of_diffusers(schnell)).max() < 2 / 255


def test_a_seed_decides_and_guidance_and_the_negative_prompt_have_their_say(parts: Parts) -> None:
    picture = make(parts)
    assert picture.shape == (80, 64, 3)
    assert np.array_equal(make(parts), picture)
    assert not np.array_equal(make(parts, seed=2), picture)
    assert not np.array_equal(make(parts, guidance=20.0), picture)
    assert not np.array_equal(make(parts, scale=3.0, negative_prompt="a blue square"), picture)


def test_no_picture_is_steered_away_from_nothing(parts: Parts) -> None:
    assert np.array_equal(make(parts, scale=7.5), make(parts))
    assert np.array_equal(make(parts, negative_prompt="a blue square"), make(parts))


def test_sides_are_rounded_down_to_16(parts: Parts) -> None:
    assert np.array_equal(make(parts, width=79, height=95), make(parts))


def test_what_a_prompt_does_not_say() -> None:
    said = SAMPLE_DEFAULTS["flux"]
    assert (said.width, said.height, said.steps, said.guidance, said.scale) == (512, 512, 20, 3.5, 1.0)


def test_random_numbers_modes_and_gradients_of_the_training_are_untouched(parts: Parts) -> None:
    parts.denoiser.train()
    parts.denoiser.img_in.eval()
    before = torch.get_rng_state()
    make(parts, seed=None)
    assert torch.equal(torch.get_rng_state(), before)
    assert parts.denoiser.training
    assert not parts.denoiser.img_in.training
    assert not parts.vae.training
    assert all(p.grad is None for p in parts.denoiser.parameters())
    parts.denoiser.eval()


def test_compiled_blocks_sample_without_graphs_of_their_own(parts: Parts) -> None:
    eager, graphs = make(parts), []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    for block in parts.denoiser.double_blocks:
        block.compile(backend=backend)
    assert np.array_equal(make(parts), eager)
    assert graphs == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: weights go there and come back")
def test_modules_are_lent_to_the_gpu_and_their_weights_are_where_they_were(parts: Parts) -> None:
    on_the_cpu = make(parts)
    lendable = (parts.vae, *parts.text_encoders)
    before = [(tensor, tensor.data_ptr(), tensor.clone()) for module in lendable for tensor in module.parameters()]
    parts.denoiser.cuda()
    on_the_gpu = make(parts)
    parts.denoiser.cpu()
    assert np.abs(on_the_gpu.astype(int) - on_the_cpu.astype(int)).max() <= 4
    for tensor, address, values in before:
        assert tensor.data_ptr() == address
        assert torch.equal(tensor, values)


def test_a_failure_while_a_module_is_lent_leaves_it_as_it_was() -> None:
    module = torch.nn.Linear(2, 2)
    address = module.weight.data_ptr()
    with pytest.raises(RuntimeError, match="incompatible tensor type"), lent(module, torch.device("meta")):
        pass
    assert module.weight.data_ptr() == address
    assert not module.weight.is_meta
