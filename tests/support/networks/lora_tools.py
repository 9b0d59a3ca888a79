"""LoRA files with random numbers for the miniatures, and their layers as tools find them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sd_scripts.families.common.family import family_of
from sd_scripts.families.common.layer_rows import LayerRows, find_modules
from sd_scripts.library.files.safetensors_stream import TensorFile


def layers_of(miniature: Any) -> list[LayerRows]:
    """All layers in the base model's file that adapters are trained for."""
    path = miniature.checkpoint
    found = find_modules(family_of(miniature.family), TensorFile(path, "model").header, "model", path)
    return [layer for module in found.values() for layer in module.trained_layers]


def random_pairs(layers: Iterable[LayerRows], rank: int, alpha: float, seed: int = 1) -> dict[str, Tensor]:
    """A LoRA under sd-scripts' names."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in ((layer.name, layer.shape) for layer in layers):
        ones = (1,) * (len(shape) - 2)
        tensors[f"{name}.lora_down.weight"] = torch.randn(rank, *shape[1:], generator=generator) * 0.2
        tensors[f"{name}.lora_up.weight"] = torch.randn(shape[0], rank, *ones, generator=generator) * 0.2
        tensors[f"{name}.alpha"] = torch.tensor(alpha)
    return tensors


def write_lora(
    miniature: Any, path: Path, rank: int = 4, alpha: float = 2.0, seed: int = 1, **metadata: str
) -> dict[str, Tensor]:
    """Write a LoRA of all layers and return its tensors."""
    tensors = random_pairs(layers_of(miniature), rank, alpha, seed)
    version = family_of(miniature.family).identity.base_model_version
    known = {"ss_base_model_version": version, "ss_network_module": "networks.lora", "ss_network_dim": str(rank)}
    save_file(tensors, path, {**known, **metadata})
    return tensors


def deltas(tensors: Mapping[str, Tensor] | Path) -> dict[str, Tensor]:
    """Each layer's change of its weight by a LoRA under sd-scripts' names, (out, in)."""
    tensors = load_file(tensors) if isinstance(tensors, Path) else tensors
    found = {}
    for key, down in tensors.items():
        if key.endswith(".lora_down.weight"):
            name = key.removesuffix(".lora_down.weight")
            up, alpha = tensors[f"{name}.lora_up.weight"], float(tensors[f"{name}.alpha"])
            found[name] = up.flatten(1).double() @ down.flatten(1).double() * (alpha / len(down))
    return found
