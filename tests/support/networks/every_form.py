"""A miniature with adapters of every form, the result of each layer with them, and ComfyUI's result."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sd_scripts.families.common.family import family_of
from sd_scripts.generating.adapters import modules_of
from sd_scripts.networks.adapter import Adapter, Group, LayerPlan, adapter_kinds, read_layer
from sd_scripts.networks.layers import Dropouts
from sd_scripts.networks.network import attach
from sd_scripts.networks.plan import AdaptedModule
from sd_scripts.networks.targets import adaptable, is_conv
from sd_scripts.options.networks.network_args import NetworkArguments
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.network_choice import KINDS
from sd_scripts.settings.settings import Settings
from tests.support.networks.comfyui import key_map, merged, weights_of

VAES = ("ae", "vae")
OUTPUTS, INPUTS, TUCKER = {"dora_wd": "True"}, {"dora_wd": "True", "wd_on_output": "False"}, {"use_tucker": "True"}
FORMS: dict[str, tuple[str, int, dict[str, str]]] = {
    "lora": ("lora", 8, {}),
    "lora that starts from the weight": ("lora", 3, {"start": "olora"}),
    "lora in tucker form": ("dora", 3, TUCKER),
    "dora": ("dora", 8, OUTPUTS),
    "dora of inputs": ("dora", 3, INPUTS),
    "dora of inputs in tucker form": ("dora", 3, {**INPUTS, **TUCKER}),
    "loha": ("loha", 3, {}),
    "loha in tucker form": ("loha", 3, TUCKER),
    "loha with dora": ("loha", 3, OUTPUTS),
    "loha with dora of inputs": ("loha", 3, INPUTS),
    "lokr": ("lokr", 2, {"factor": "4"}),
    "lokr of whole matrices": ("lokr", 2, {"factor": "4", "full_matrix": "True"}),
    "lokr, both decomposed": ("lokr", 3, {"factor": "8", "decompose_both": "True"}),
    "lokr, w1 alone decomposed": ("lokr", 3, {"factor": "8", "decompose_both": "True", "half": "w1"}),
    "lokr in tucker form": ("lokr", 2, {"factor": "2", **TUCKER}),
    "lokr with dora": ("lokr", 2, {"factor": "4", **OUTPUTS}),
    "lokr with dora of inputs": ("lokr", 2, {"factor": "4", **INPUTS}),
    "oft": ("oft", 4, {}),
    "oft with constraint": ("oft", 4, {"constraint": "0.001"}),
    "rescaled oft": ("oft", 4, {"rescaled": "True"}),
    "boft": ("boft", 16, {}),
    "boft with constraint": ("boft", 16, {"constraint": "0.001"}),
    "rescaled boft": ("boft", 16, {"rescaled": "True"}),
}
"""Kind, rank and network_args of every form that a file can have. With a rank of 8, and LoKr with one of 2 and a factor
of 4, layers can compute in one product with their base weights (networks/folded/folding.py)."""
TUCKER_FORMS = {form for form, (_, _, arguments) in FORMS.items() if "use_tucker" in arguments}
"""A Linear, which has no kernel, uses its plain forms."""


def layers_of(modules: tuple[AdaptedModule, ...]) -> Iterator[tuple[AdaptedModule, str, nn.Linear | nn.Conv2d]]:
    for each in modules:
        for path, layer in adaptable(each.module, each.target, conv=True):
            yield each, path, layer


@dataclass(kw_only=True)
class AdaptedLayer:
    """A layer with an adapter of one form, and its tensors in a file."""

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
        # of a convolution: the gradients of one position's outputs show each input's contribution
        height, width = layer.kernel_size
        x = torch.zeros(1, layer.in_channels, 4 * height + 1, 4 * width + 1, requires_grad=True)
        y = layer(x)
        row, column = y.shape[2] // 2, y.shape[3] // 2
        top, left = (at * step - pad for at, step, pad in zip((row, column), layer.stride, layer.padding, strict=True))
        changes = [torch.autograd.grad(out, x, retain_graph=True)[0][0] for out in y[0, :, row, column]]
        return torch.stack(changes)[:, :, top : top + height, left : left + width].double()

    def shown(self, weight: Tensor) -> Tensor:
        """ComfyUI's weight at strength 1. docs/adapters.md names the two differences from the trained one."""
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

    @property
    def names(self) -> str:
        return "flux" if self.family == "flux_kontext" else self.family

    @property
    def adapted_files(self) -> dict[str, Path]:
        """The files whose layers can have adapters, by option."""
        files: dict[str, Path] = self.miniature.files
        return {name: path for name, path in files.items() if path.suffix == ".safetensors" and name not in VAES}

    def save(self, path: Path, layers: Iterable[AdaptedLayer] | None = None) -> Path:
        """Write an adapter file of some of the layers, or of all."""
        version = family_of(self.family).identity.base_model_version
        known = {"ss_base_model_version": version, "ss_network_module": "networks.lora"}
        chosen = {
            f"{layer.name}.{ending}": tensor.contiguous()
            for layer in layers or self.layers
            for ending, tensor in layer.tensors.items()
        }
        save_file(chosen, path, known)
        return path

    def few_in_blocks(self) -> list[AdaptedLayer]:
        """Return a Linear of each form, and a convolution where there are any, in few of the denoiser's blocks."""
        denoiser = next(each.module for each in self.modules if each.target.group == "unet")
        parts = family_of(self.family).blocks.denoiser(denoiser)
        blocks = [{*block.modules()} for part in parts for block in part][:-1]  # of the last not all reach the loss
        by_block = [
            {
                (layer.form, is_conv(layer.adapter.layer)): layer
                for layer in self.layers
                if layer.adapter.layer in block and (is_conv(layer.adapter.layer) or layer.form not in TUCKER_FORMS)
            }
            for block in blocks
        ]
        found: dict[tuple[str, bool], AdaptedLayer] = {}
        while more := max((layers.keys() - found.keys() for layers in by_block), key=len):
            found |= next({place: layers[place] for place in more} for layers in by_block if more <= layers.keys())
        return [*found.values()]

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
    options = dict(KINDS[kind_name](NetworkArguments(arguments)))
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


def adapted_model(miniature: Any, family_name: str) -> Model:
    """The miniature with adapters of all forms, filled with random numbers as if training had been."""
    family = family_of(family_name)
    files = {name: str(path) for name, path in miniature.files.items() if path.suffix == ".safetensors"}
    settings = Settings(script_for(family_name, "lora"), files)
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
    return Model(miniature=miniature, family=family_name, modules=modules, layers=found)
