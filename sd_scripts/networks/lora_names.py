"""Convert the LoRA layer names of other programs to those of sd-scripts.

These are diffusers (with PEFT and before), ai-toolkit, ComfyUI, OneTrainer and XLabs.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from sd_scripts.library.quantized import empty_weight
from sd_scripts.networks.adapter import Tensors, adapter_kinds
from sd_scripts.networks.adapters.lora import DOWN, UP, Pair
from sd_scripts.networks.plan import AdaptedModule
from sd_scripts.networks.targets import adaptable

DENOISER_PREFIXES = ("transformer.", "unet.", "diffusion_model.", "")
"""Prefixes of the denoiser's layers: diffusers and ai-toolkit, diffusers' U-Net, ComfyUI, peft itself."""
ENCODER_PREFIXES = (("text_encoder.",), ("text_encoder_2.",))
"""The same for the text encoders, in the order of the family."""

BEFORE_PEFT = re.compile(
    r"(?P<layer>.+?)(?:\.processor\.(?P<projection>to_q|to_k|to_v|to_out)_lora|\.lora_linear_layer|\.lora)"
    r"\.(?P<part>down|up)\.weight"
)
"""diffusers before version 0.22: `unet.mid_block.attentions.0.….attn1.processor.to_q_lora.down.weight`."""
XLABS = re.compile(
    r"(?:diffusion_model\.)?(?P<block>double_blocks\.\d+)\.processor\.(?P<layer>qkv|proj)_lora(?P<stream>[12])"
    r"\.(?P<part>down|up)\.weight"
)
"""XLabs' files; stream 1 is the image, 2 the text."""
XLABS_SINGLE = re.compile(r"single_blocks\.\d+\.processor\.")
"""XLabs adds these to the output of a block, not to one of its layers."""

LETTERS = {"down": "A", "up": "B"}


def _peft_name(key: str) -> str:
    """Convert a name from before PEFT or of XLabs to PEFT's."""
    if found := XLABS.fullmatch(key):
        attention = "img_attn" if found["stream"] == "1" else "txt_attn"
        return f"{found['block']}.{attention}.{found['layer']}.lora_{LETTERS[found['part']]}.weight"
    if found := BEFORE_PEFT.fullmatch(key):
        projection = {"to_out": ".to_out.0", None: ""}.get(found["projection"], f".{found['projection']}")
        return f"{found['layer']}{projection}.lora_{LETTERS[found['part']]}.weight"
    return key


def with_our_names(tensors: Mapping[str, Tensor], modules: Sequence[AdaptedModule]) -> Tensors:
    """Return the same tensors with other programs' names of layers in `modules` converted to sd-scripts'.

    `modules` are the denoiser, then the text encoders. Where a file has several modules for one layer here,
    they become one pair with a block-diagonal up; rows that the file does not cover are 0.
    """
    left = {_peft_name(key): tensor for key, tensor in tensors.items()}
    found: Tensors = {}
    for number, each in enumerate(modules):
        for path, layer in adaptable(each.module, each.target, conv=True):
            ours = each.target.name(path)
            for modules_there in _layers_there(each, path):
                pairs = [_take_pair(left, _spellings(each, number, name, ours)) for name in modules_there]
                if any(pairs):
                    found |= _merge_pairs(ours, pairs, empty_weight(layer))
            found |= _take_others(left, _spellings(each, number, path, ours), ours)
    return {**left, **found}


def _layers_there(each: AdaptedModule, path: str) -> Iterator[tuple[str, ...]]:
    """Yield a layer's counterparts in other programs: the same one, or several modules in the order of its rows."""
    yield (path,)
    if each.target.diffusers_paths and (diffusers_paths := each.target.diffusers_paths(path)) != (path,):
        yield diffusers_paths


def _spellings(each: AdaptedModule, number: int, name: str, ours: str) -> Iterator[tuple[str, str, str]]:
    """Yield each spelling of a layer's name, with the suffixes of down and up."""
    prefixes = ENCODER_PREFIXES[number - 1] if 0 < number <= len(ENCODER_PREFIXES) else DENOISER_PREFIXES
    inner = name.removeprefix("text_model.")  # which transformers has left out of the paths of CLIP
    for written in dict.fromkeys((name, inner, f"text_model.{inner}") if number else (name,)):
        for prefix in prefixes:
            yield f"{prefix}{written}", "lora_A", "lora_B"
            yield f"{prefix}{written}", "lora_down", "lora_up"  # distilled LoRAs of Qwen-Image
    for a, b in (("lora_A", "lora_B"), ("lora_down", "lora_up")):
        yield each.target.comfyui(name), a, b
    flat = name.replace(".", "_")
    others = [f"lora_te{number}_{flat}"] if number else [f"lora_transformer_{flat}"]  # OneTrainer
    if not number and each.target.alias:
        others.append(each.target.alias(name))
    for other in others:
        if other != ours:
            yield other, "lora_down", "lora_up"


def _take_pair(left: Tensors, spellings: Iterable[tuple[str, str, str]]) -> Pair | None:
    """Pop the tensors of a layer from `left`."""
    for name, a, b in spellings:
        keys = {DOWN: f"{name}.{a}.weight", UP: f"{name}.{b}.weight", "alpha": f"{name}.alpha"}
        if keys[DOWN] in left and keys[UP] in left:
            return Pair.read({ending: left.pop(key) for ending, key in keys.items() if key in left})
    return None


def _take_others(left: Tensors, spellings: Iterable[tuple[str, str, str]], ours: str) -> Tensors:
    """Pop the tensors of a layer that plain LoRA does not have, and return them under our name."""
    endings = {ending for kind in adapter_kinds().values() for ending in kind.endings} - {DOWN, UP}
    found: Tensors = {}
    for name, *_ in spellings if endings else ():
        own = [ending for ending in endings if f"{name}.{ending}" in left]
        found |= {f"{ours}.{e}": left.pop(f"{name}.{e}") for e in (*own, "alpha") if own and f"{name}.{e}" in left}
    return found


def _merge_pairs(ours: str, pairs: Sequence[Pair | None], weight: Tensor) -> Tensors:
    """Merge pairs into one layer. Of several modules, each but the last has as many rows as the layer has inputs. If
    all have the same down, as parts of one layer have, the layer gets it too."""
    first = next(pair for pair in pairs if pair)
    if all(pair and _same_input(pair, first) for pair in pairs):
        up = torch.cat([pair.up for pair in pairs if pair])
        return {f"{ours}.{DOWN}": first.down, f"{ours}.{UP}": up, f"{ours}.alpha": torch.tensor(first.alpha)}
    width = first.down.shape[1]
    out = len(weight) * width // weight.shape[1]  # `weight` may be that of a larger model of this kind
    rows = [width] * (len(pairs) - 1)
    rows.append(out - sum(rows))
    blocks = [
        pair.up * (pair.alpha / pair.rank) if pair else torch.zeros(count, 0)
        for pair, count in zip(pairs, rows, strict=True)
    ]
    return {
        f"{ours}.{DOWN}": torch.cat([pair.down for pair in pairs if pair]),
        f"{ours}.{UP}": torch.block_diag(*blocks),
    }


def _same_input(one: Pair, other: Pair) -> bool:
    return one.alpha == other.alpha and torch.equal(one.down, other.down)
