"""Whole runs of FLUX.2 klein: by musubi-tuner's commands, without reference images, swapped in fp8, in diffusers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from benchmarks.pipelines.flux2 import make_pipeline
from sd_scripts.families.flux2.family import FLUX2
from sd_scripts.families.flux2.text import text_length
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.command_line import given_flags
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from tests.families.flux2.test_flux2 import CHAT, transformer_of, with_further_layers
from tests.support.training import Run, equal, train

pytestmark = [
    pytest.mark.run,
    pytest.mark.usefixtures("no_graphs"),
]

BF16 = {"mixed_precision": "bf16", "max_train_steps": 2}


@pytest.fixture(scope="module")
def sampled(flux2_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three steps of a LoRA with a high learning rate, and a sample of it. Do not write to it."""
    folder = tmp_path_factory.mktemp("sampled")
    (folder / "prompts.txt").write_text("a red circle --w 64 --h 80 --s 3 --d 7 --l 4")
    samples = {"sample_prompts": folder / "prompts.txt", "sample_every_n_steps": 3}
    return train(flux2_miniature, folder / "out", learning_rate=0.03, save_as_format="both", **samples)


@pytest.mark.parametrize("file", ["short.safetensors", "short-diffusers.safetensors"])
def test_diffusers_generates_the_image_of_the_run(sampled: Run, flux2_miniature: Any, file: str) -> None:
    (event,) = sampled.events_of("sample")
    ours = np.asarray(Image.open(event["path"])) / 255
    files = {option: str(path) for option, path in flux2_miniature.files.items()}
    components = FLUX2.open(Settings(script_for("flux2", "lora"), files), torch.float32).load()
    (tokenizer,) = components.tokenizers
    tokenizer.chat_template = CHAT
    encoder = with_further_layers(components.text_encoders[0])
    pipeline = make_pipeline(transformer_of(components), components.vae, encoder, tokenizer)
    pipeline.set_progress_bar_config(disable=True)

    def theirs() -> Any:
        options = {"guidance_scale": 4.0, "width": 64, "height": 80, "num_inference_steps": 3, "output_type": "np"}
        options["max_sequence_length"] = text_length(components)
        return pipeline(None, "a red circle", generator=torch.Generator().manual_seed(7), **options).images[0]

    before = theirs()
    pipeline.load_lora_weights(sampled.output / file)
    assert np.abs(ours - theirs()).max() < 2 / 255
    assert np.abs(ours - before).max() > 8 / 255


def test_flags_of_musubi_tuner_are_understood() -> None:
    script = script_for("flux2", "lora")
    flags = [f"--{name}={name}" for name in ("dit", "vae", "text_encoder")]
    flags += ["--model_version", "klein-base-4b", "--timestep_sampling", "flux2_shift", "--weighting_scheme", "none"]
    flags += ["--fp8_base", "--fp8_scaled", "--fp8_text_encoder", "--sdpa", "--network_module", "networks.lora_flux_2"]
    given = given_flags(script, flags)
    settings = from_values(script, given.values)
    assert given.problems == []
    assert settings.unknown == {}
    names = ("pretrained_model_name_or_path", "vae", "qwen3", "flux2_version", "network_train_unet_only")
    assert [settings.value(name) for name in names] == ["dit", "vae", "text_encoder", "klein-base-4b", True]
    dev = from_values(script, {**given.values, "flux2_version": "dev"})
    assert "flux2_version: FLUX.2 dev is not supported; choose a klein model" in map(str, dev.problems())


def test_swapped_fp8_blocks_train_like_resident_ones(flux2_miniature: Any, tmp_path: Path) -> None:
    resident, swapped = (
        train(flux2_miniature, tmp_path / str(number), **BF16, fp8_base=True, gradient_checkpointing=True, **more)
        for number, more in enumerate(({}, {"blocks_to_swap": 3}))
    )
    assert swapped.status == 0
    assert swapped.losses == resident.losses
    assert equal(swapped.tensors(), resident.tensors())


def test_it_trains_without_reference_images_and_names_itself(flux2_miniature: Any, tmp_path: Path) -> None:
    trained = train(flux2_miniature, tmp_path / "out", control_directory=None, max_train_steps=2)
    assert trained.status == 0
    with safe_open(trained.output / "short.safetensors", "pt") as file:
        known = file.metadata()
    expected = {"ss_base_model_version": "flux2", "ss_timestep_sampling": "flux2_shift"}
    assert {key: known.get(key) for key in expected} == expected
