"""What ComfyUI shows of our files: each layer is the one that was trained, with the weight that training computed."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sd_scripts.families.common.family import family_of
from sd_scripts.tools.lora.files import full_size_modules
from sd_scripts.tools.merge_lora import COMMAND
from tests.support.miniatures import MINIATURES
from tests.support.networks.comfyui import key_map, merged, weight_names
from tests.support.networks.every_form import FORMS, AdaptedLayer, Model, adapted_model, layers_of

pytestmark = pytest.mark.run

REFERENCE = Path(__file__).parents[2] / "reference"
FAMILIES = ("sdxl", "flux", "flux_kontext", "qwen_image")
AT = 0.6
"""A strength that is not 1."""
NOT_LINEAR = ("oft", "boft")
"""Kinds whose change ComfyUI does not multiply by the strength."""


# names


def full_size_weights(family: str) -> dict[str, list[int]]:
    """The weights of ComfyUI's model and their shapes, from the keys of the published files."""
    shapes: dict[str, list[int]] = {}
    if family == "sdxl":
        shapes = json.loads((REFERENCE / "sd_keys_sdxl_checkpoint.json").read_text())
    elif family == "flux":
        found = json.loads((REFERENCE / "flux_keys.json").read_text())
        for part in ("transformer", "clip_l", "t5xxl"):
            for key, (shape, *numbers) in found[part].items():
                for number in range(numbers[0], numbers[1] + 1) if numbers else [0]:
                    shapes[key.replace(".N.", f".{number}.")] = shape
    else:
        found = json.loads((REFERENCE / "qwen_image.json").read_text())
        blocks = range(found["transformer"]["blocks"])
        for key, shape in found["transformer"]["block"].items():
            shapes |= {f"transformer_blocks.{number}.{key}": shape for number in blocks}
        for key, shape in found["text_encoder"].items():
            shapes |= {key.replace(".0.", f".{number}."): shape for number in range(28)}
    weights = {}
    for key, shape in shapes.items():
        for name in (names := weight_names(family, key)):
            weights[name] = [shape[0] // len(names), *shape[1:]] if shape else []
    return weights


@pytest.mark.parametrize("family", ["sdxl", "flux", "qwen_image"])
def test_comfyui_finds_the_weight_of_every_layer_at_full_size(family: str) -> None:
    """Under sd-scripts' names and its own. It has no short names for the text encoder of Qwen-Image."""
    weights = full_size_weights(family)
    known, seen = key_map(family, weights), set()
    for each, path, layer in layers_of(full_size_modules(family_of(family))):
        name, own = each.target.name(path), each.target.comfyui(path)
        assert (name in known) != (family == "qwen_image" and name.startswith("lora_te")), name
        assert known.get(name, known[own]) == known[own]
        assert weights[known[own]] == list(layer.weight.shape), name
        seen.add(known[own])
    assert len(seen) > {"sdxl": 900, "flux": 500, "qwen_image": 900}[family], "each layer has a weight of its own"


# numbers


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Model:
    return adapted_model(request.getfixturevalue(MINIATURES[request.param]), request.param)


def close(ours: Tensor, expected: Tensor, layer: AdaptedLayer) -> None:
    note = f"{layer.form}: {layer.name}"
    torch.testing.assert_close(
        ours.double(), expected.double(), rtol=1e-4, atol=1e-5 * float(expected.abs().max()),
        msg=lambda text: f"{note}\n{text}",
    )  # fmt: skip


def test_comfyui_computes_the_weight_that_was_trained(model: Model) -> None:
    weights, seen = model.weights(model.adapted_files), set()
    for layer in model.layers:
        weight = weights[layer.name]
        theirs = merged(weight, layer.tensors)
        close(theirs, layer.shown(weight), layer)
        assert not torch.allclose(theirs, weight.double(), rtol=1e-3), layer.form
        seen.add((layer.form, weight.ndim))
    assert {form for form, _ in seen} == set(FORMS)
    assert model.family != "sdxl" or {form for form, ndim in seen if ndim == 4} == set(FORMS)


def test_the_merge_tool_writes_what_comfyui_computes_at_other_strengths(model: Model, tmp_path: Path) -> None:
    """Of the kinds that ComfyUI multiplies by the strength."""
    files = model.adapted_files
    lora = model.save(tmp_path / "all.safetensors")
    written = {name: tmp_path / f"{name}.safetensors" for name in files}
    flags = ["--base_model", str(files["pretrained_model_name_or_path"]), "--models", str(lora)]
    flags += ["--ratios", str(AT), "--save_to", str(written["pretrained_model_name_or_path"])]
    for name in files:
        if name != "pretrained_model_name_or_path":
            flags += [f"--{name}", str(files[name]), f"--{name}_save_to", str(written[name])]
    assert COMMAND.main("merge_lora.py", flags) == 0
    before, after = model.weights(files), model.weights(written)
    for layer in model.layers:
        weight, ours = before[layer.name], after[layer.name].double()
        close(ours, weight + AT * (layer.trained - weight), layer)
        if layer.form in ("oft", "oft with constraint"):  # the strength counts twice there
            close(ours, merged(weight, layer.tensors, math.sqrt(AT)), layer)
        elif FORMS[layer.form][0] not in NOT_LINEAR:
            close(merged(weight, layer.tensors, AT), weight + AT * (layer.shown(weight) - weight), layer)
