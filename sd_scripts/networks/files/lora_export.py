"""Give a LoRA the key names of other programs: diffusers (PEFT), ComfyUI, ai-toolkit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from sd_scripts.networks.adapter import Adapter, Tensors, read_layer
from sd_scripts.networks.adapters.lora import Lora, Pair
from sd_scripts.networks.files.lora_names import ENCODER_PREFIXES
from sd_scripts.networks.plan import AdaptedModule
from sd_scripts.networks.targets import readable


def with_names_of(program: str, tensors: Mapping[str, Tensor], modules: Sequence[AdaptedModule]) -> Tensors:
    """Return the tensors of a LoRA, which are under sd-scripts' names, under those of `program`: sd-scripts, diffusers,
    comfyui or ai-toolkit. Layers that are not in `modules` are left out.

    Raises ValueError, without an option's name, for an adapter kind that the program does not read.
    """
    found: Tensors = {}
    for number, each in enumerate(modules):
        for path, _ in readable(each.module):
            name = each.target.name(path)
            if layer := read_layer(tensors, name):
                found |= dict(_named(program, each, number, path, name, *layer))
    return found


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
    """Yield a layer as PEFT has it. It knows no alpha: the factors take up alpha / rank, each about half of it."""
    target = each.target
    if number:
        full = path if path.startswith("text_model.") or "_text_model_" not in name else f"text_model.{path}"
        names: tuple[str, ...] = (f"{ENCODER_PREFIXES[number - 1][0]}{full}",)
    else:
        inner = target.diffusers_paths(path) if target.diffusers_paths else (path,)
        names = tuple(f"{'unet' if target.alias else 'transformer'}.{part}" for part in inner)
    scale = pair.alpha / pair.rank
    of_up = 2.0 ** math.floor(math.log2(abs(scale)) / 2)  # powers of two leave the numbers exact
    down, up = _scaled(pair.down, scale / of_up), _scaled(pair.up, of_up)
    if not number and target.swaps_halves(path):
        up = torch.cat(up.chunk(2)[::-1])
    if len(up) < (len(names) - 1) * down.shape[1] + 1:
        raise ValueError(f"{name} has {len(up)} outputs for {len(names)} layers of diffusers, which are too few")
    for part, (own_down, own_up) in zip(names, _parts(down, up, pair, len(names)), strict=True):
        yield f"{part}.lora_A.weight", own_down
        yield f"{part}.lora_B.weight", own_up


def _parts(down: Tensor, up: Tensor, pair: Pair, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Split a layer into `count` modules, of which each but the last has as many rows as the layer has inputs. Where
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
