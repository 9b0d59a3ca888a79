"""What ComfyUI shows of our files: each layer is the one that was trained, with the weight that training computed."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from comfyui_help import key_map, merged, weight_names, weights_of
from conftest import MINIATURES
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sd_scripts.families.registry import family_of
from sd_scripts.generating.adapters import modules_of
from sd_scripts.networks.adapter import Adapter, Group, LayerPlan, adapter_kinds, read_layer
from sd_scripts.networks.layers import Dropouts
from sd_scripts.networks.lora_export import with_names_of
from sd_scripts.networks.network import attach
from sd_scripts.networks.plan import AdaptedModule
from sd_scripts.networks.targets import adaptable, is_conv
from sd_scripts.options.catalog import script_for
from sd_scripts.options.network_args import NetworkArguments
from sd_scripts.options.settings import Settings
from sd_scripts.tools.lora.files import full_size_modules
from sd_scripts.tools.merge_lora import COMMAND

REFERENCE = Path(__file__).parent / "reference"
FAMILIES = ("sdxl", "flux", "flux_kontext", "qwen_image")
AT = 0.6
"""A strength that is not 1."""
OUTPUTS, INPUTS, TUCKER = {"dora_wd": "True"}, {"dora_wd": "True", "wd_on_output": "False"}, {"use_tucker": "True"}
FORMS: dict[str, tuple[str, int, dict[str, str]]] = {
    "lora": ("lora", 3, {}),
    "lora that starts from the weight": ("lora", 3, {"start": "olora"}),
    "lora in tucker form": ("dora", 3, TUCKER),
    "dora": ("dora", 3, OUTPUTS),
    "dora of inputs": ("dora", 3, INPUTS),
    "dora of inputs in tucker form": ("dora", 3, {**INPUTS, **TUCKER}),
    "loha": ("loha", 3, {}),
    "loha in tucker form": ("loha", 3, TUCKER),
    "loha with dora": ("loha", 3, OUTPUTS),
    "loha with dora of inputs": ("loha", 3, INPUTS),
    "lokr": ("lokr", 2, {"factor": "4"}),
    "lokr of whole matrices": ("lokr", 2, {"factor": "4", "full_matrix": "True"}),
    "lokr, both decomposed": ("lokr", 1, {"factor": "4", "decompose_both": "True"}),
    "lokr, w1 alone decomposed": ("lokr", 1, {"factor": "4", "decompose_both": "True", "half": "w1"}),
    "lokr in tucker form": ("lokr", 1, {"factor": "2", **TUCKER}),
    "lokr with dora": ("lokr", 2, {"factor": "4", **OUTPUTS}),
    "lokr with dora of inputs": ("lokr", 2, {"factor": "4", **INPUTS}),
    "oft": ("oft", 4, {}),
    "oft with constraint": ("oft", 4, {"constraint": "0.001"}),
    "rescaled oft": ("oft", 4, {"rescaled": "True"}),
    "boft": ("boft", 16, {}),
    "boft with constraint": ("boft", 16, {"constraint": "0.001"}),
    "rescaled boft": ("boft", 16, {"rescaled": "True"}),
}
"""Kind, rank and network_args of every form that a file can have."""
NOT_LINEAR = ("oft", "boft")
"""Kinds whose change ComfyUI does not multiply by the strength."""
VAES = ("ae", "vae")


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


def layers_of(modules: tuple[AdaptedModule, ...]) -> Iterator[tuple[AdaptedModule, str, nn.Linear | nn.Conv2d]]:
    for each in modules:
        for path, layer in adaptable(each.module, each.target, conv=True):
            yield each, path, layer


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


@dataclass(kw_only=True)
class AdaptedLayer:
    """A layer with an adapter of one form, and what a file holds of it."""

    form: str
    adapter: Adapter
    tensors: dict[str, Tensor]

    @property
    def name(self) -> str:
        return self.adapter.name

    @cached_property
    def trained(self) -> Tensor:
        """The weight that the layer computes with, float64."""
        layer: Any = self.adapter.layer
        if isinstance(layer, nn.Linear):
            eye, nothing = torch.eye(layer.in_features), torch.zeros(1, layer.in_features)
            with torch.no_grad():
                return (layer(eye) - layer(nothing)).t().double()
        # of a convolution: the gradients of one place's outputs tell what each input adds to them
        height, width = layer.kernel_size
        x = torch.zeros(1, layer.in_channels, 4 * height + 1, 4 * width + 1, requires_grad=True)
        y = layer(x)
        row, column = y.shape[2] // 2, y.shape[3] // 2
        top, left = (at * step - pad for at, step, pad in zip((row, column), layer.stride, layer.padding, strict=True))
        changes = [torch.autograd.grad(out, x, retain_graph=True)[0][0] for out in y[0, :, row, column]]
        return torch.stack(changes)[:, :, top : top + height, left : left + width].double()

    def shown(self, weight: Tensor) -> Tensor:
        """What ComfyUI shows at strength 1. docs/adapters.md names the two differences from what was trained."""
        each = (-1, *[1] * (weight.ndim - 1))
        scale = self.tensors.get("dora_scale")
        if scale is not None and scale.shape[0] == len(weight):  # divided by the norms of the base weight
            plain = {ending: tensor for ending, tensor in self.tensors.items() if ending != "dora_scale"}
            changed, base = (rows.flatten(1).norm(dim=1) for rows in (merged(weight, plain), weight.double()))
            return self.trained * (changed / base).view(each)
        if self.form == "rescaled oft":  # without `rescale`
            return self.trained / self.tensors["rescale"].view(each)
        return self.trained


@dataclass(frozen=True, kw_only=True)
class Model:
    """A miniature whose layers have adapters of all forms in turn."""

    miniature: Any
    family: str
    modules: list[AdaptedModule]
    layers: list[AdaptedLayer]
    tensors: dict[str, Tensor]

    @property
    def names(self) -> str:
        return "flux" if self.family == "flux_kontext" else self.family

    @property
    def adapted_files(self) -> dict[str, Path]:
        """The files whose layers can have adapters, by option."""
        files: dict[str, Path] = self.miniature.files
        return {name: path for name, path in files.items() if path.suffix == ".safetensors" and name not in VAES}

    def weights(self, files: Mapping[str, Path]) -> dict[str, Tensor]:
        """The weights of the model's files under the names of layers in LoRA files."""
        found: dict[str, Tensor] = {}
        for path in files.values():
            found |= weights_of(self.names, load_file(path))
        known = key_map(self.names, found)
        own = {each.target.name(path): each.target.comfyui(path) for each, path, _ in self.each_layer}
        return {name: found[known.get(name, known[own[name]])] for name in own}

    @property
    def each_layer(self) -> Iterator[tuple[AdaptedModule, str, nn.Module]]:
        for each in self.modules:
            of_this = [layer.adapter.plan for layer in self.layers if layer.adapter.plan.module is each.module]
            yield from ((each, plan.path, plan.module) for plan in of_this)


def plan_of(form: str, name: str, module: nn.Module, path: str, layer: nn.Module) -> LayerPlan:
    kind_name, rank, arguments = FORMS[form]
    arguments = {**arguments}
    start, half = arguments.pop("start", None), arguments.pop("half", None)
    kind = adapter_kinds()[kind_name]
    options = dict(kind.read_options(NetworkArguments(arguments)))
    if start and not is_conv(layer):
        options["start"] = start
    if half:
        shapes = dict(kind.shapes(layer.weight, rank, options))  # type: ignore[attr-defined]
        if "lokr_w2_a" in shapes:
            a, b = shapes.pop("lokr_w2_a"), shapes.pop("lokr_w2_b")
            shapes["lokr_w2"] = (a[0], b[1])
        options["shapes"] = shapes
    return LayerPlan(
        name=name, module=module, path=path, kind=kind.for_layer(layer, options), rank=rank, alpha=1.5,
        group=Group("unet", 1.0), options=options,
    )  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Model:
    miniature = request.getfixturevalue(MINIATURES[request.param])
    family = family_of(request.param)
    files = {name: str(path) for name, path in miniature.files.items() if path.suffix == ".safetensors"}
    settings = Settings(script_for(request.param, "lora"), files)
    modules = modules_of(family, family.open(settings, torch.float32).load())
    for each in modules:
        each.module.requires_grad_(False).eval()
    turns, plans, forms = {False: cycle(FORMS), True: cycle(FORMS)}, [], []
    for each, path, layer in layers_of(tuple(modules)):
        form = next(turns[is_conv(layer)])
        plans.append(plan_of(form, each.target.name(path), each.module, path, layer))
        forms.append(form)
    network = attach(plans, Dropouts(), torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    with torch.no_grad():
        network.masters.add_(0.1 * torch.randn_like(network.masters))
    network.refresh()
    tensors = {key: tensor.clone() for key, tensor in network.file_tensors(None).items()}
    found = []
    for form, adapter in zip(forms, network.layers, strict=True):
        layer = read_layer(tensors, adapter.name)
        assert layer is not None
        found.append(AdaptedLayer(form=form, adapter=adapter, tensors=layer[1]))
    return Model(miniature=miniature, family=request.param, modules=modules, layers=found, tensors=tensors)


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
    version = family_of(model.family).identity.base_model_version
    known = {"ss_base_model_version": version, "ss_network_module": "networks.lora"}
    save_file({key: tensor.contiguous() for key, tensor in model.tensors.items()}, tmp_path / "all.safetensors", known)
    written = {name: tmp_path / f"{name}.safetensors" for name in files}
    flags = ["--base_model", str(files["pretrained_model_name_or_path"]), "--models", str(tmp_path / "all.safetensors")]
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
