"""Models that read more than noisy latents are refused before loading: by every script, from files and folders."""

import json
import math
import struct
from pathlib import Path

import pytest

from sd_scripts.families.cards.model_file import describe
from sd_scripts.settings import preflight
from sd_scripts.settings.catalog import GENERATE_SCRIPTS, SCRIPTS
from sd_scripts.settings.generate_settings import problems, settings_of
from sd_scripts.settings.reading import from_values

SDXL = {
    "conditioner.embedders.1.model.ln_final.weight": (8,),
    "model.diffusion_model.label_emb.0.0.weight": (8, 8),
}
SDXL_FIRST = "model.diffusion_model.input_blocks.0.0.weight"
FLUX = "double_blocks.0.img_attn.qkv.weight"
QWEN = "transformer_blocks.0.txt_mlp.net.0.proj.weight"

WITH_OTHER_INPUTS = [
    ("sdxl", {**SDXL, SDXL_FIRST: (8, 9, 3, 3)}, "an SDXL inpainting model"),
    ("sdxl", {**SDXL, SDXL_FIRST: (8, 8, 3, 3)}, "an SDXL InstructPix2Pix model"),
    ("sdxl", {**SDXL, SDXL_FIRST: (8, 5, 3, 3)}, "an SDXL model, with 5 instead of 4 input channels"),
    ("flux", {FLUX: (96, 32), "img_in.weight": (32, 128)}, "FLUX.1 Canny or Depth"),
    ("flux", {"single_transformer_blocks.0.proj_mlp.bias": (8,), "x_embedder.weight": (32, 384)}, "FLUX.1 Fill"),
    ("flux", {FLUX: (96, 32), "img_in.weight": (32, 196)}, "a FLUX.1 model, with 196 instead of 64 input channels"),
    ("qwen_image", {QWEN: (8, 8), "img_in.weight": (32, 132)}, "a Qwen-Image model, with 132 instead of 64 input"),
]


def shaped(path: Path, shapes: dict[str, tuple[int, ...]]) -> Path:
    """A file with these shapes in its header, and a hole where the weights would be."""
    end, header = 0, {}
    for key, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return path


def told(path: Path, family: str) -> dict[str, list[str]]:
    """The message of each script of a family and derived ones about a base model, by the script's file."""
    values = {"pretrained_model_name_or_path": str(path)}
    own = [script for script in (*SCRIPTS, *GENERATE_SCRIPTS) if script.family.startswith(family)]
    found = {
        script.file: problems(settings_of(script.family, {}, values))
        if script in GENERATE_SCRIPTS
        else preflight.problems(from_values(script, values))
        for script in own
    }
    return {file: [str(problem) for problem in each if problem.names == (*values,)] for file, each in found.items()}


@pytest.mark.parametrize(("family", "shapes", "called"), WITH_OTHER_INPUTS)
def test_every_script_refuses_a_model_with_different_inputs_by_name(
    family: str, shapes: dict[str, tuple[int, ...]], called: str, tmp_path: Path
) -> None:
    path = shaped(tmp_path / "model.safetensors", shapes)
    found = told(path, family)
    assert len(found) >= 3
    for problem in found.values():
        assert problem[0].startswith(f"pretrained_model_name_or_path: '{path}' is {called}"), problem
        assert "not a base model for " in problem[0]


@pytest.mark.parametrize(("channels", "refused"), [(4, False), (8, True), (9, True)])
def test_a_diffusers_folder_is_judged_by_its_weights_whatever_its_pipeline(
    channels: int, refused: bool, tmp_path: Path
) -> None:
    """diffusers saves an ordinary model that was loaded to inpaint under the inpainting pipeline's name."""
    (tmp_path / "unet").mkdir()
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionXLInpaintPipeline"}')
    shaped(tmp_path / "unet/diffusion_pytorch_model.safetensors", {"conv_in.weight": (8, channels, 3, 3)})
    assert {file for file, problem in told(tmp_path, "sdxl").items() if problem} == (
        {script.file for script in (*SCRIPTS, *GENERATE_SCRIPTS) if script.family == "sdxl"} if refused else set()
    )


def test_loras_can_still_be_merged_into_an_inpainting_model(tmp_path: Path) -> None:
    found = describe(shaped(tmp_path / "model.safetensors", {**SDXL, SDXL_FIRST: (8, 9, 3, 3)}))
    assert (found.family, found.is_base_model) == ("sdxl", False)
