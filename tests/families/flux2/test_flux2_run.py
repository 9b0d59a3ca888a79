"""Whole runs of FLUX.2 klein: by musubi-tuner's command lines, without reference images, swapped in fp8."""

from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.command_line import given_flags
from sd_scripts.settings.reading import from_values
from tests.support.training import equal, train

pytestmark = [
    pytest.mark.run,
    pytest.mark.usefixtures("no_graphs"),
]
BF16 = {"mixed_precision": "bf16", "max_train_steps": 2}


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
