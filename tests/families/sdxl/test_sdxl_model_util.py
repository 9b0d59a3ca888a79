"""SDXL's single file: its keys at full size, and the miniature against diffusers' own conversion."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from diffusers.loaders import single_file_utils as diffusers_reads
from torch import nn

from sd_scripts.families.sdxl.card import CARD
from sd_scripts.families.sdxl.family import SDXL
from sd_scripts.families.sdxl.full_size import modules as full_size_modules
from sd_scripts.families.sdxl.load import LAYOUTS, single_file
from sd_scripts.library import sdxl_model_util as sgm
from tests.support.miniatures import sdxl_settings

pytestmark = pytest.mark.run

REFERENCE = Path(__file__).parents[2] / "reference"
SHAPES = {k: tuple(v) for k, v in json.loads((REFERENCE / "sd_keys_sdxl_checkpoint.json").read_text()).items()}
LORA_NAMES = json.loads((REFERENCE / "sd_lora_keys.json").read_text())


def of(part: str, file: dict[str, Any]) -> dict[str, Any]:
    """What belongs to a component in the file of a whole model, without prefix."""
    (prefix,) = (component.prefixes[-1] for component in CARD.files.components if component.name == part)
    return {key.removeprefix(prefix): value for key, value in file.items() if key.startswith(prefix)}


@pytest.fixture(scope="module")
def full_size() -> dict[str, Any]:
    """SDXL base without memory, with the sizes of the reference file's shapes."""
    with torch.device("meta"):
        return {part: layout.make(of(part, SHAPES)) for part, layout in LAYOUTS.items()}


def test_a_whole_model_is_written_with_the_2514_keys_and_shapes_of_the_reference(full_size: dict[str, Any]) -> None:
    written = single_file({name: module.state_dict() for name, module in full_size.items()})
    assert {key: tuple(tensor.shape) for key, tensor in written.items()} == SHAPES


def test_the_model_of_the_benchmark_has_the_keys_and_shapes_of_the_reference() -> None:
    written = single_file({name: module.state_dict() for name, module in full_size_modules().items()})
    assert {key: tuple(tensor.shape) for key, tensor in written.items()} == SHAPES


@pytest.mark.parametrize("part", LAYOUTS)
def test_a_whole_model_fills_every_name_of_a_module(full_size: dict[str, Any], part: str) -> None:
    file = {key: torch.empty(shape, device="meta") for key, shape in SHAPES.items()}
    wanted = {name: tensor.shape for name, tensor in full_size[part].state_dict().items()}
    assert {name: tensor.shape for name, tensor in LAYOUTS[part].read(of(part, file), wanted).items()} == wanted


def test_lora_names_match_sd_scripts(full_size: dict[str, Any]) -> None:
    unet = {sgm.lora_unet_name(path) for path, module in _layers(full_size["denoiser"])}
    encoders = [full_size["text_encoder1"], full_size["text_encoder2"]]
    names = {sgm.lora_text_encoder_name(i, path) for i, part in enumerate(encoders) for path, _ in _layers(part)}
    assert set(LORA_NAMES["sdxl_conv_dim4_conv2"]) <= unet | names
    assert set(LORA_NAMES["sdxl_linear_dim4"]) <= unet | names
    assert sum(name.startswith("lora_unet") for name in LORA_NAMES["sdxl_linear_dim4"]) == 722


def test_a_lora_name_of_one_layer() -> None:
    path = "down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q"
    assert sgm.lora_unet_name(path) == "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q"
    first = sgm.lora_text_encoder_name(0, "encoder.layers.0.self_attn.k_proj")
    assert first == "lora_te1_text_model_encoder_layers_0_self_attn_k_proj"
    second = sgm.lora_text_encoder_name(1, "text_model.encoder.layers.0.self_attn.k_proj")
    assert second == "lora_te2_text_model_encoder_layers_0_self_attn_k_proj"


def test_the_miniature_reads_as_diffusers_reads_it(miniature: Any) -> None:
    file = safetensors.torch.load_file(miniature.checkpoint)
    shapes = {key: tuple(tensor.shape) for key, tensor in file.items()}
    modules: dict[str, Any] = {part: layout.make(of(part, shapes)) for part, layout in LAYOUTS.items()}

    def read(part: str) -> dict[str, torch.Tensor]:
        return LAYOUTS[part].read(of(part, file), modules[part].state_dict())

    _equal(read("denoiser"), diffusers_reads.convert_ldm_unet_checkpoint(dict(file), modules["denoiser"].config))
    theirs = diffusers_reads.convert_ldm_vae_checkpoint(dict(file), modules["vae"].config)
    ours = read("vae")
    _equal(ours, {name: tensor.view_as(ours[name]) for name, tensor in theirs.items()})
    theirs = diffusers_reads.convert_open_clip_checkpoint(
        modules["text_encoder2"], dict(file), prefix="conditioner.embedders.1.model."
    )
    theirs = {name: tensor for name, tensor in theirs.items() if "position_ids" not in name}
    _equal(read("text_encoder2"), theirs)


def test_a_missing_key_is_named(miniature: Any, tmp_path: Path) -> None:
    file = safetensors.torch.load_file(miniature.checkpoint)
    del file["model.diffusion_model.middle_block.1.proj_in.weight"]
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(file, path)
    (problem,) = SDXL.check(sdxl_settings(path))
    assert problem.endswith("is incomplete; missing: 'model.diffusion_model.middle_block.1.proj_in.weight'")


def _layers(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(path, m) for path, m in module.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]


def _equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
