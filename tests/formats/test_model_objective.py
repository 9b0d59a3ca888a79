"""A base model's stated objective is compared with the options, and used when generating."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sd_scripts.families.cards.model_file import describe
from sd_scripts.settings import preflight
from sd_scripts.settings.catalog import SCRIPTS
from sd_scripts.settings.reading import from_values
from tests.support.scripts import FLUX_LORA, SDXL_FULL, SDXL_LORA

SDXL_KEY = "conditioner.embedders.1.model.ln_final.weight"
INVERSION = next(script for script in SCRIPTS if script.method == "textual_inversion")
VELOCITY, TERMINAL = {"v_parameterization": True}, {"zero_terminal_snr": True}


def file(path: Path, *keys: str, prediction: str = "", key: str = SDXL_KEY) -> Path:
    """A checkpoint with marker keys, and the prediction type in its metadata."""
    metadata = {"modelspec.prediction_type": prediction} if prediction else None
    save_file({name: torch.zeros(1) for name in (key, *keys)}, path, metadata)
    return path


def folder(path: Path, **scheduler: Any) -> Path:
    """A diffusers folder with this scheduler."""
    (path / "scheduler").mkdir(parents=True)
    (path / "model_index.json").write_text('{"_class_name": "StableDiffusionXLPipeline"}')
    (path / "scheduler" / "scheduler_config.json").write_text(json.dumps(scheduler))
    return path


def told(model: Path, script: Any = SDXL_LORA, **values: Any) -> list[str]:
    """Names of the options that the model's own statements are at odds with."""
    settings = from_values(script, {"pretrained_model_name_or_path": str(model), **values})
    return [sentence.partition(":")[0] for sentence in preflight.remarks(settings) if str(model) in sentence]


@pytest.mark.parametrize("script", [SDXL_LORA, SDXL_FULL, INVERSION])
def test_a_v_prediction_model_needs_its_options(script: Any, tmp_path: Path) -> None:
    marked = file(tmp_path / "v.safetensors", "v_pred", "ztsnr")
    assert told(marked, script) == ["v_parameterization", "zero_terminal_snr"]
    assert told(marked, script, **VELOCITY) == ["zero_terminal_snr"]
    assert told(marked, script, **VELOCITY, **TERMINAL) == []
    assert "v_parameterization" not in told(file(tmp_path / "plain.safetensors"), script, **VELOCITY)


def test_metadata_and_a_pickle_state_it_too(tmp_path: Path) -> None:
    assert told(file(tmp_path / "v.safetensors", prediction="v")) == ["v_parameterization"]
    noise = file(tmp_path / "noise.safetensors", prediction="epsilon")
    assert told(noise) == []
    assert told(noise, **VELOCITY) == ["v_parameterization"]
    assert told(file(tmp_path / "x0.safetensors", prediction="x0")) == ["pretrained_model_name_or_path"]
    assert told(file(tmp_path / "flow.safetensors", prediction="Flow")) == ["pretrained_model_name_or_path"]
    torch.save({"state_dict": {SDXL_KEY: torch.zeros(1), "v_pred": torch.zeros(1)}}, tmp_path / "v.ckpt")
    assert told(tmp_path / "v.ckpt") == ["v_parameterization"]


@pytest.mark.parametrize("text", ["", "[]", "null", '{"prediction_type": '])
def test_an_unreadable_scheduler_is_not_treated_as_an_empty_one(text: str, tmp_path: Path) -> None:
    model = folder(tmp_path / "model")
    (model / "scheduler" / "scheduler_config.json").write_text(text)
    assert told(model) == ["pretrained_model_name_or_path"]
    (model / "scheduler" / "scheduler_config.json").unlink()
    assert told(model) == []


@pytest.mark.parametrize(
    ("scheduler", "values", "named"),
    [
        ({"prediction_type": "v_prediction"}, {}, ["v_parameterization"]),
        (
            {"prediction_type": "v_prediction", "rescale_betas_zero_snr": True},
            {},
            ["v_parameterization", "zero_terminal_snr"],
        ),
        ({"prediction_type": "v_prediction", "rescale_betas_zero_snr": True}, VELOCITY, ["zero_terminal_snr"]),
        ({"prediction_type": "v_prediction", "rescale_betas_zero_snr": False}, VELOCITY, []),
        (
            {"prediction_type": "v_prediction", "rescale_betas_zero_snr": False},
            VELOCITY | TERMINAL,
            ["zero_terminal_snr"],
        ),
        ({"prediction_type": "epsilon"}, {}, []),
        ({"prediction_type": "epsilon"}, VELOCITY, ["v_parameterization"]),
        ({"prediction_type": "sample"}, {}, ["pretrained_model_name_or_path"]),
        ({"_class_name": "EDMEulerScheduler"}, {}, ["pretrained_model_name_or_path"]),
        ({"_class_name": "FlowMatchEulerDiscreteScheduler"}, {}, ["pretrained_model_name_or_path"]),
        ({"prediction_type": ["v_prediction"]}, {}, []),
    ],
)
def test_a_folder_states_it_in_its_scheduler(
    scheduler: dict[str, Any], values: dict[str, Any], named: list[str], tmp_path: Path
) -> None:
    assert told(folder(tmp_path / "model", **scheduler), **values) == named


def test_the_page_names_a_folders_prediction_type(tmp_path: Path) -> None:
    model = folder(tmp_path / "model", prediction_type="v_prediction")
    assert describe(model).variant == "SDXL diffusers folder, v-prediction"
    assert describe(model).is_base_model


def test_families_without_such_options_ignore_the_marks(tmp_path: Path) -> None:
    flux = file(tmp_path / "flux.safetensors", "v_pred", key="double_blocks.0.img_attn.qkv.weight")
    assert told(flux, FLUX_LORA) == []
