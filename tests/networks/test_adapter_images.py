"""Images with adapter files: our samplers match diffusers with the file loaded, or with merged weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline
from safetensors.torch import save_file

from sd_scripts.families.common.components import Components
from sd_scripts.families.common.family import family_of
from sd_scripts.generating.adapters import modules_of
from sd_scripts.networks.files.lora_names import with_names_of
from sd_scripts.networks.targets import adaptable
from sd_scripts.settings.generate_settings import AdapterFile, settings_of, training_settings
from tests.generating.test_generate import SMALL, TEXT, generator_of, image_of, values_of
from tests.support.families.flux_pipeline import pipeline_of
from tests.support.networks.comfyui import merged
from tests.support.networks.every_form import Model, adapted_model
from tests.support.networks.lora_tools import write_lora

pytestmark = [
    pytest.mark.run,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
FIXTURES = {"sdxl": "miniature", "flux": "flux_miniature"}
PROMPTS = {"sdxl": "a red circle --l 7.5", "flux": "a red circle --l 1 --g 3.5"}
CLOSE = 2 / 255
"""As without adapters."""


@pytest.fixture(params=FIXTURES)
def base(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(FIXTURES[request.param])


def components_of(miniature: Any) -> Components:
    settings = training_settings(settings_of(miniature.family, {}, values_of(miniature)))
    return family_of(miniature.family).open(settings, torch.float32).load()


def diffusers_pipeline(miniature: Any, components: Components) -> Any:
    if miniature.family == "flux":
        return pipeline_of(components)
    made = StableDiffusionXLPipeline(
        vae=components.vae,
        text_encoder=components.text_encoders[0],
        text_encoder_2=components.text_encoders[1],
        tokenizer=components.tokenizers[0],
        tokenizer_2=components.tokenizers[1],
        unet=components.denoiser,
        scheduler=EulerDiscreteScheduler(
            beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1
        ),
        force_zeros_for_empty_prompt=False,
        add_watermarker=False,
    )
    made.set_progress_bar_config(disable=True)
    return made


def of_diffusers(miniature: Any, pipeline: Any) -> np.ndarray:
    of_family: dict[str, Any] = {"guidance_scale": 7.5}
    if miniature.family == "flux":
        of_family = {"guidance_scale": 3.5, "max_sequence_length": TEXT["flux"]["t5xxl_max_token_length"]}
    made = pipeline(
        "a red circle",
        width=SMALL["width"],
        height=SMALL["height"],
        num_inference_steps=SMALL["steps"],
        generator=torch.Generator().manual_seed(int(SMALL["image_seed"])),
        output_type="np",
        **of_family,
    )
    return np.asarray(made.images[0])


def ours(miniature: Any, *files: Path) -> np.ndarray:
    kept = generator_of(miniature)
    prompt = [PROMPTS[miniature.family]]
    return image_of(kept, miniature, *(AdapterFile(file, 1.0) for file in files), prompt=prompt) / 255


def test_a_lora_generates_the_image_of_diffusers_with_the_file_loaded(base: Any, tmp_path: Path) -> None:
    """Of SDXL it loads sd-scripts' file as well; of FLUX.1 it loads only files of full width."""
    components = components_of(base)
    tensors = write_lora(base, tmp_path / "ours.safetensors", rank=4, alpha=1.0)
    modules = modules_of(family_of(base.family), components)
    save_file(with_names_of("diffusers", tensors, modules), tmp_path / "theirs.safetensors")
    image = ours(base, tmp_path / "ours.safetensors")
    assert np.abs(image - ours(base)).mean() > 5 * CLOSE, "the file changes the image"
    assert np.abs(image - ours(base, tmp_path / "theirs.safetensors")).max() < CLOSE
    for name in ("theirs", "ours") if base.family == "sdxl" else ("theirs",):
        pipeline = diffusers_pipeline(base, components)
        pipeline.load_lora_weights(tmp_path / f"{name}.safetensors")
        assert np.abs(image - of_diffusers(base, pipeline)).max() < CLOSE, name
        pipeline.unload_lora_weights()


def shown_as_trained(model: Model) -> list[Any]:
    """The layers of all forms that ComfyUI applies as trained."""
    weights = model.weights(model.adapted_files)
    return [layer for layer in model.layers if layer.shown(weights[layer.name]) is layer.trained]


def test_a_file_of_every_kind_generates_the_image_of_comfyuis_weights(base: Any, tmp_path: Path) -> None:
    """With diffusers' models and sampler, which get the merged weights."""
    model = adapted_model(base, base.family)
    layers = shown_as_trained(model)
    image = ours(base, model.save(tmp_path / "all.safetensors", layers))
    tensors = {layer.name: layer.tensors for layer in layers}
    components = components_of(base)
    for each in modules_of(family_of(base.family), components):
        for path, layer in adaptable(each.module, each.target, conv=True):
            if own := tensors.get(each.target.name(path)):
                layer.weight.data = merged(layer.weight, own).to(layer.weight.dtype)
    assert np.abs(image - ours(base)).mean() > 5 * CLOSE, "the file changes the image"
    assert np.abs(image - of_diffusers(base, diffusers_pipeline(base, components))).max() < CLOSE
