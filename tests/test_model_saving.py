"""Whole models as they are saved: every tensor of the file they came from, in any form, whole or not at all."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import sdxl_settings
from safetensors.torch import load_file
from torch import Tensor

from sd_scripts.families.family import ModelWeights, Parts
from sd_scripts.families.flux import FLUX
from sd_scripts.families.sdxl import SDXL
from sd_scripts.library import sdxl_model_util as sgm
from sd_scripts.options.catalog import FLUX_LORA
from sd_scripts.options.model_file import read_header
from sd_scripts.options.settings import Settings

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def file(miniature: Any) -> State:
    return load_file(miniature.checkpoint)


@pytest.fixture(scope="module")
def parts(miniature: Any) -> Parts:
    return SDXL.load(sdxl_settings(miniature.checkpoint), torch.float32, torch.device("cpu"))


@pytest.fixture(scope="module")
def flux_parts(flux_miniature: Any) -> Parts:
    files = {option: str(path) for option, path in flux_miniature.files.items()}
    return FLUX.load(Settings(FLUX_LORA.groups, files), torch.float32, torch.device("cpu"))


def test_a_model_that_learned_nothing_is_the_file_it_came_from(parts: Parts, file: State, tmp_path: Path) -> None:
    saved = save_sdxl(parts, tmp_path)
    same(load_file(saved), file)
    assert read_header(saved).metadata == {"modelspec.title": "Größe"}


def test_what_learned_is_saved_and_the_rest_is_not_rounded(miniature: Any, file: State, tmp_path: Path) -> None:
    """The base model's file is in float32, training in bf16."""
    half = SDXL.load(sdxl_settings(miniature.checkpoint), torch.bfloat16, torch.device("cpu"))
    learned = {name: tensor + 1 for name, tensor in half.text_encoders[0].state_dict().items()}
    saved = load_file(save_sdxl(half, tmp_path, text_encoders=(learned, None)))
    unet, first = (prefix_of(file, prefix) for prefix in (sgm.UNET_PREFIX, sgm.TEXT_ENCODER1_PREFIX))
    still = file.keys() - unet.keys() - first.keys()
    same({key: saved[key] for key in still}, {key: file[key] for key in still})
    same({key: saved[key] for key in unet}, {key: tensor.bfloat16() for key, tensor in unet.items()})
    same({key: saved[key] for key in first}, {key: tensor.bfloat16() + 1 for key, tensor in first.items()})


def test_a_saved_transformer_of_flux_is_the_file_it_came_from(
    flux_parts: Parts, flux_miniature: Any, tmp_path: Path
) -> None:
    saved = tmp_path / "flux.safetensors"
    weights = ModelWeights(denoiser=flux_parts.denoiser.state_dict())
    FLUX.save(flux_parts, weights, saved, FLUX.saved_form(flux_parts, "ckpt"), None, {"modelspec.title": "x"})
    same(load_file(saved), load_file(flux_miniature.checkpoint))
    assert read_header(saved).metadata == {"modelspec.title": "x"}


def save_sdxl(
    parts: Parts,
    folder: Path,
    form: str = "safetensors",
    dtype: torch.dtype | None = None,
    text_encoders: Any = (None, None),
) -> Path:
    weights = ModelWeights(denoiser=parts.denoiser.state_dict(), text_encoders=text_encoders)
    path = folder / ("model" if form == "diffusers" else f"model.{form}")
    SDXL.save(parts, weights, path, form, dtype, {"modelspec.title": "Größe"})
    return path


def prefix_of(state: State, prefix: str) -> State:
    return {key: tensor for key, tensor in state.items() if key.startswith(prefix)}


def same(ours: State, theirs: State) -> None:
    """Bit for bit, in the same dtype."""
    assert ours.keys() == theirs.keys()
    assert [k for k in ours if ours[k].dtype != theirs[k].dtype or not torch.equal(ours[k], theirs[k])] == []
