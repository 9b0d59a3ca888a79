"""Convert the names that other programs give to the layers of a LoRA to the names of sd-scripts, and back.

Files of diffusers (with PEFT and before), ai-toolkit, ComfyUI, OneTrainer and XLabs are read; diffusers',
ComfyUI's and ai-toolkit's are written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from sd_scripts.formats.models.lora_keys import ALPHA, DOWN, NORMS, UP
from sd_scripts.library.quantization.quantized import empty_weight
from sd_scripts.networks.adapter import Adapter, Tensors, read_layer
from sd_scripts.networks.adapters.lora import Lora, Pair
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
    left = _as_parts(layers, modules)
    renamed = Layers()
    for number, each in enumerate(modules):
        for path, layer in readable(each.module):
            ours = each.target.name(path)
            same = _taken(left, (ours, *_spellings(each, number, path)))
            parts = [] if same else _parts(left, each, number, path)
            if same:
                renamed[ours] = same
            elif any(parts):
                renamed[ours] = _joined(ours, parts, empty_weight(layer), each.target.swaps_halves(path))
    return renamed, left


def _as_parts(layers: Mapping[str, Tensors], modules: Sequence[AdaptedModule]) -> Layers:
    """Return the layers, with those of a related model split into the parts that `modules` have, under our names.
    Adapters other than plain LoRAs are left as they are."""
    left = dict(layers)
    split: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for number, each in enumerate(modules):
        for path, _ in readable(each.module) if each.target.part_of else ():
            assert each.target.part_of
            whole, place, count = each.target.part_of(path)
            names = (each.target.name(whole), *_spellings(each, number, whole))
            name = next((name for name in names if name in layers and layers[name].keys() <= {DOWN, UP, ALPHA}), None)
            if name is None or name == each.target.name(path):
                continue
            pair = Pair.read(_computable(layers[name]))
            if name not in split:
                split[name] = list(_split(pair.down, pair.up, pair, count))
                left.pop(name, None)
            down, up = split[name][place]
            alpha = torch.tensor(pair.alpha * len(down) / pair.rank)
            left[each.target.name(path)] = {DOWN: down, UP: up, ALPHA: alpha}
    return left


def _parts(left: Layers, each: AdaptedModule, number: int, path: str) -> list[Tensors | None]:
    """Pop the tensors of a layer's counterparts in diffusers, in the order of its rows."""
    paths = each.target.diffusers_paths(path) if each.target.diffusers_paths else ()
    return [_taken(left, _spellings(each, number, there)) for there in paths]


def _taken(left: Layers, names: Iterable[str]) -> Tensors | None:
    return next((left.pop(name) for name in names if name in left), None)


def _spellings(each: AdaptedModule, number: int, name: str) -> Iterator[str]:
    """Yield the names that programs write for the layer that diffusers or we call `name` in a module."""
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
    """Join the modules of a layer into one. Of several, each but the last has one row per input of the layer."""
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
    """Return tensors that PyTorch can compute with, which fp8 is not; bf16 represents its values exactly."""
    return {ending: tensor.bfloat16() if tensor.itemsize == 1 else tensor for ending, tensor in tensors.items()}


def _joined_pairs(pairs: Sequence[Pair | None], weight: Tensor) -> Tensors:
    """Join pairs into one. If all have the same down, as parts of one layer have, the layer gets it too."""
    first = next(pair for pair in pairs if pair)
    if all(pair and _same_input(pair, first) for pair in pairs):
        up = torch.cat([pair.up for pair in pairs if pair])
        return {DOWN: first.down, UP: up, ALPHA: torch.tensor(first.alpha)}
    width = first.down.shape[1]
    out = len(weight) * width // weight.shape[1]  # `weight` may belong to a larger model of this kind
    rows = [width] * (len(pairs) - 1)
    rows.append(out - sum(rows))
    blocks = [
        pair.up * (pair.alpha / pair.rank) if pair else torch.zeros(count, 0)
        for pair, count in zip(pairs, rows, strict=True)
    ]
    return {DOWN: torch.cat([pair.down for pair in pairs if pair]), UP: torch.block_diag(*blocks)}


def _same_input(one: Pair, other: Pair) -> bool:
    return one.alpha == other.alpha and torch.equal(one.down, other.down)


def with_names_of(program: str, tensors: Mapping[str, Tensor], modules: Sequence[AdaptedModule]) -> Tensors:
    """Rename the tensors of a LoRA from sd-scripts' names to those of `program`: sd-scripts, diffusers,
    comfyui or ai-toolkit. Layers that are not in `modules` are left out.

    Raises ValueError, without an option's name, for an adapter kind that the program does not read.
    """
    renamed: Tensors = {}
    for number, each in enumerate(modules):
        for path, _ in readable(each.module):
            name = each.target.name(path)
            if layer := read_layer(tensors, name):
                renamed |= dict(_named(program, each, number, path, name, *layer))
    return renamed


def _named(
    program: str, each: AdaptedModule, number: int, path: str, name: str, kind: type[Adapter], own: Tensors
) -> Iterator[tuple[str, Tensor]]:
    target = each.target
    is_unet = target.alias is not None
    if program == "comfyui":
        yield from _renamed(target.comfyui(path), own)
    elif program == "sd-scripts":
        yield from _renamed(name, own)
    elif program == "ai-toolkit" and (is_unet or each.target.group != "unet"):
        # of a U-Net it writes diffusers' names as sd-scripts would, and of text encoders sd-scripts' own
        yield from _renamed(target.alias(path) if target.alias else name, own)
    elif kind is not Lora:
        raise ValueError(f"{program} reads plain LoRAs, but {name} is {kind.kind}; choose comfyui or sd-scripts")
    else:
        yield from _peft(each, number, path, name, Pair.read(own))


def _renamed(name: str, own: Tensors) -> Iterator[tuple[str, Tensor]]:
    return ((f"{name}.{ending}", tensor) for ending, tensor in own.items())


def _peft(each: AdaptedModule, number: int, path: str, name: str, pair: Pair) -> Iterator[tuple[str, Tensor]]:
    """Yield a layer as PEFT has it. It has no alpha: the factors absorb alpha / rank, each about half of it."""
    target = each.target
    if number:
        full = path if path.startswith("text_model.") or "_text_model_" not in name else f"text_model.{path}"
        names: tuple[str, ...] = (f"{ENCODER_PREFIXES[number - 1][0]}{full}",)
    else:
        inner = target.diffusers_paths(path) if target.diffusers_paths else (path,)
        denoiser = "unet." if target.alias else "transformer."
        names = tuple(part if part.startswith(target.diffusers_components) else f"{denoiser}{part}" for part in inner)
    scale = pair.alpha / pair.rank
    of_up = 2.0 ** math.floor(math.log2(abs(scale)) / 2)  # powers of two leave the numbers exact
    down, up = _scaled(pair.down, scale / of_up), _scaled(pair.up, of_up)
    if not number and target.swaps_halves(path):
        up = torch.cat(up.chunk(2)[::-1])
    if len(up) < (len(names) - 1) * down.shape[1] + 1:
        raise ValueError(f"{name} has {len(up)} outputs for {len(names)} layers of diffusers, which are too few")
    for part, (own_down, own_up) in zip(names, _split(down, up, pair, len(names)), strict=True):
        yield f"{part}.lora_A.weight", own_down
        yield f"{part}.lora_B.weight", own_up


def _split(down: Tensor, up: Tensor, pair: Pair, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Split a layer into `count` modules, each of which but the last has one row per input of the layer. Where
    each has ranks of its own, it gets these, else all."""
    width = down.shape[1]
    rows = [width] * (count - 1)
    rows.append(len(up) - sum(rows))
    own_ranks = count > 1 and pair.is_split(rows)
    for number, part in enumerate(up.split(rows)):
        if own_ranks:
            rank = pair.rank // count
            ranks = slice(number * rank, (number + 1) * rank)
            yield down[ranks].contiguous(), part[:, ranks].contiguous()
        else:
            yield down.clone(), part.contiguous()  # a file may not share memory between tensors


def _scaled(tensor: Tensor, scale: float) -> Tensor:
    return tensor if scale == 1.0 else (tensor.float() * scale).to(tensor.dtype)
