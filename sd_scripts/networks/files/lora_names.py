"""Convert the names that other programs give to the layers of a LoRA to the names of sd-scripts.

These are diffusers (with PEFT and before), ai-toolkit, ComfyUI, OneTrainer and XLabs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from sd_scripts.formats.models.lora_keys import ALPHA, DOWN, NORMS, UP
from sd_scripts.library.quantization.quantized import empty_weight
from sd_scripts.networks.adapter import Tensors
from sd_scripts.networks.adapters.lora import Pair
from sd_scripts.networks.plan import AdaptedModule
from sd_scripts.networks.targets import readable

DENOISER_PREFIXES = ("transformer.", "unet.", "diffusion_model.", "")
"""Prefixes of the denoiser's layers: diffusers and ai-toolkit, diffusers' U-Net, ComfyUI, peft itself."""
ENCODER_PREFIXES = (("text_encoder.",), ("text_encoder_2.",))
"""The same for the text encoders, in the order of the family."""

Layers = dict[str, Tensors]
"""The layers of a file by name, each with its tensors by ending."""


def with_our_names(layers: Mapping[str, Tensors], modules: Sequence[AdaptedModule]) -> tuple[Layers, Layers]:
    """Return the layers of a file that `modules` have, under sd-scripts' names, and the rest under the file's.

    `modules` are the denoiser, then the text encoders. Where a file has several modules for one layer here, they become
    one pair with a block-diagonal up; rows that the file does not cover are 0. Raises ValueError, to follow the file's
    name, if that is not possible.
    """
    left, found = dict(layers), Layers()
    for number, each in enumerate(modules):
        for path, layer in readable(each.module):
            ours = each.target.name(path)
            same = _taken(left, (ours, *_spellings(each, number, path)))
            parts = [] if same else _parts(left, each, number, path)
            if same:
                found[ours] = same
            elif any(parts):
                found[ours] = _joined(ours, parts, empty_weight(layer), each.target.swaps_halves(path))
    return found, left


def _parts(left: Layers, each: AdaptedModule, number: int, path: str) -> list[Tensors | None]:
    """Pop the tensors of a layer's counterparts in diffusers, in the order of its rows."""
    paths = each.target.diffusers_paths(path) if each.target.diffusers_paths else ()
    return [_taken(left, _spellings(each, number, there)) for there in paths]


def _taken(left: Layers, names: Iterable[str]) -> Tensors | None:
    return next((left.pop(name) for name in names if name in left), None)


def _spellings(each: AdaptedModule, number: int, name: str) -> Iterator[str]:
    """Yield what programs write for the layer that diffusers or we call `name` in a module."""
    prefixes = ENCODER_PREFIXES[number - 1] if 0 < number <= len(ENCODER_PREFIXES) else DENOISER_PREFIXES
    inner = name.removeprefix("text_model.")  # which transformers has left out of the paths of CLIP
    for written in dict.fromkeys((name, inner, f"text_model.{inner}") if number else (name,)):
        yield from (f"{prefix}{written}" for prefix in prefixes)
    yield each.target.comfyui(name)
    flat = name.replace(".", "_")
    yield f"lora_te{number}_{flat}" if number else f"lora_transformer_{flat}"  # OneTrainer
    if not number and each.target.alias:
        yield each.target.alias(name)


def _joined(ours: str, parts: Sequence[Tensors | None], weight: Tensor, swapped: bool) -> Tensors:
    """Join the modules of a layer into one. Of several, each but the last has as many rows as the layer has inputs."""
    if len(parts) == 1 and parts[0] and not swapped:
        return parts[0]
    there = [part for part in parts if part]
    if any(part.keys() - {DOWN, UP, ALPHA, NORMS} for part in there):
        raise ValueError(f"has rows of {ours} that are not plain LoRA or DoRA, which cannot be joined")
    if len({part[DOWN].shape[1:] for part in there}) > 1 or any(part[UP].ndim != 2 for part in there):
        raise ValueError(f"has rows of {ours} for different inputs, which cannot be joined")
    if any(NORMS in part for part in there) and not all(part and NORMS in part for part in parts):
        raise ValueError(f"has DoRA for some rows of {ours} only, which cannot be joined")
    joined = _joined_pairs([Pair.read(_computable(part)) if part else None for part in parts], weight)
    if all(NORMS in part for part in there):
        joined[NORMS] = torch.cat([part[NORMS].reshape(-1, 1) for part in there])
    if swapped:
        for ending in joined.keys() & {UP, NORMS}:
            joined[ending] = torch.cat(joined[ending].chunk(2)[::-1])
    return joined


def _computable(tensors: Tensors) -> Tensors:
    """Return tensors that PyTorch can compute with, which fp8 is not; bf16 holds its values exactly."""
    return {ending: tensor.bfloat16() if tensor.itemsize == 1 else tensor for ending, tensor in tensors.items()}


def _joined_pairs(pairs: Sequence[Pair | None], weight: Tensor) -> Tensors:
    """Join pairs into one. If all have the same down, as parts of one layer have, the layer gets it too."""
    first = next(pair for pair in pairs if pair)
    if all(pair and _same_input(pair, first) for pair in pairs):
        up = torch.cat([pair.up for pair in pairs if pair])
        return {DOWN: first.down, UP: up, ALPHA: torch.tensor(first.alpha)}
    width = first.down.shape[1]
    out = len(weight) * width // weight.shape[1]  # `weight` may be that of a larger model of this kind
    rows = [width] * (len(pairs) - 1)
    rows.append(out - sum(rows))
    blocks = [
        pair.up * (pair.alpha / pair.rank) if pair else torch.zeros(count, 0)
        for pair, count in zip(pairs, rows, strict=True)
    ]
    return {DOWN: torch.cat([pair.down for pair in pairs if pair]), UP: torch.block_diag(*blocks)}


def _same_input(one: Pair, other: Pair) -> bool:
    return one.alpha == other.alpha and torch.equal(one.down, other.down)
