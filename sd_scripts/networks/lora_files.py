"""Read LoRA files, convert their keys to sd-scripts' names, and merge them into base weights."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from sd_scripts.library import fp8
from sd_scripts.library.compile_utils import maybe_uncompile_state_dict
from sd_scripts.library.model_reader import read_weights
from sd_scripts.library.quantized import add_, format_of
from sd_scripts.networks.adapter import Tensors, adapter_kinds, read_layer
from sd_scripts.networks.lora_names import XLABS_SINGLE, with_our_names
from sd_scripts.networks.plan import AdaptedModule
from sd_scripts.networks.targets import adaptable
from sd_scripts.networks.updates import dense_weight

OTHER_METHODS = {
    "a1.": "GLoRA",
    "diff": "full fine-tuning",
    "hada_w": "incomplete LoHa",
    "lokr_w": "incomplete LoKr",
    "oft_": "incomplete OFT",
    "on_input": "IA3",
    "w_norm": "training of norms",
}
"""Start of a tensor's name after its layer -> method of the file. Such layers are read if an adapter kind has these
endings."""


def read_lora(option: str, path: Path) -> Tensors:
    """Read the tensors of the LoRA file that `option` names. Raises ValueError naming the option."""
    return maybe_uncompile_state_dict(read_weights(path, option))


def read_plain_lora(option: str, path: Path, modules: Iterable[AdaptedModule]) -> Tensors:
    """Read a LoRA of the built-in adapter kinds, under sd-scripts' names for the layers of `modules`.

    Raises ValueError for other kinds.
    """
    modules = list(modules)
    tensors = with_our_names(read_lora(option, path), modules)
    known = tuple(f".{ending}" for kind in adapter_kinds().values() for ending in kind.endings)
    for key in tensors:
        if key.endswith(known):
            continue
        if XLABS_SINGLE.search(key):
            raise ValueError(
                f"{option}: '{path}' is a LoRA of XLabs with single blocks ({key}), which do not map to "
                "any layer of the model; only XLabs' double blocks can be read"
            )
        if ".lora_A." in key or ".lora_B." in key:
            raise ValueError(
                f"{option}: '{path}' has unknown PEFT key names, such as {key}; convert them to those of kohya's LoRAs"
            )
        kind = next((kind for start, kind in OTHER_METHODS.items() if key.partition(".")[2].startswith(start)), None)
        if kind:
            raise ValueError(f"{option}: '{path}' is not a LoRA but {kind} ({key}), which only LyCORIS can read")
    return tensors


@torch.no_grad()
def merge(modules: Iterable[AdaptedModule], tensors: Mapping[str, Tensor], strength: float) -> int:
    """Add `strength` times the update of the file to every layer that it has; return how many these are.

    Raises ValueError naming base_weights if the shapes differ.
    """
    merged = 0
    for each in modules:
        for path, layer in adaptable(each.module, each.target, conv=True):
            name = each.target.name(path)
            found = read_layer(tensors, name)
            if found is None:
                continue
            kind, of_layer = found
            if isinstance(layer, nn.Linear) and layer.weight.dtype == fp8.STORAGE and not format_of(layer):
                fp8.quantize_(layer, each.module.dtype)  # type: ignore[arg-type]  # as its file has it
            weight = layer.weight
            change = kind.delta(of_layer, dense_weight(layer), strength)
            if change.shape != weight.flatten(1).shape:
                raise ValueError(
                    f"base_weights: {name} has a different shape in the file than in this model; "
                    "choose a LoRA of the same kind of model"
                )
            change = change.view(weight.shape)
            if isinstance(layer, nn.Linear) and format_of(layer):
                add_(layer, change)
            else:
                weight.copy_(weight.float() + change)  # rounded once, to the model's dtype
            merged += 1
    return merged
