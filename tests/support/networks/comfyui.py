"""ComfyUI's reading of an adapter file: the weight of a layer's name, and that weight with the adapter.

These are the formulas of its `comfy/lora.py` and `comfy/weight_adapter/`, written down for tests in float64.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

NAMES = json.loads((Path(__file__).parents[2] / "reference/comfyui_lora_names.json").read_text())
"""weights: prefix of a file's key -> prefix in ComfyUI's model. layers: prefix of a name in LoRA files -> prefix of the
weight, whose points are underscores in the name. generic: the same for names with points."""


def weight_names(family: str, key: str) -> Sequence[str]:
    """Return the names of ComfyUI's weights that a key of a model's file becomes, in the order of its rows."""
    for prefix, there in NAMES["weights"][family].items():
        if not key.startswith(prefix):
            continue
        rest = key.removeprefix(prefix)
        number, _, inner = rest.partition(".")
        if there.startswith("clip_g."):  # the layout of OpenCLIP
            return [f"{there}{number}.{name}" for name in NAMES["open_clip"].get(inner, [inner])]
        return [there + rest]
    return []


def weights_of(family: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model's file by ComfyUI's names."""
    found = {}
    for key, tensor in tensors.items():
        names = weight_names(family, key)
        found |= dict(zip(names, tensor.chunk(len(names)) if names else [], strict=True))
    return found


def key_map(family: str, weights: Iterable[str]) -> dict[str, str]:
    """Return the weight that each name of a layer in a file means."""
    found = {}
    for weight in weights:
        if not weight.endswith(".weight"):
            continue
        module = weight.removesuffix(".weight")
        for name, there in NAMES["layers"][family].items():
            if module.startswith(there):
                found[name + module.removeprefix(there).replace(".", "_")] = weight
        for name, there in NAMES["generic"].items():
            if module.startswith(there):
                found[name + module.removeprefix(there)] = weight
    return found


def merged(weight: Tensor, tensors: Mapping[str, Tensor], strength: float = 1.0) -> Tensor:
    """Return the weight with an adapter, whose tensors are given by ending: float64."""
    weight = weight.double()
    parts = {ending: tensor.double() for ending, tensor in tensors.items() if ending != "alpha"}
    alpha = float(tensors["alpha"]) if "alpha" in tensors else None
    if "oft_blocks" in parts:
        rotate = _oft if parts["oft_blocks"].ndim == 3 else _boft
        return weight + strength * rotate(weight, parts, alpha or 0.0, strength)
    change, rank = next(found for read in (_lora, _loha, _lokr) if (found := read(parts)) is not None)
    change = change.reshape(weight.shape) * (1.0 if alpha is None or rank is None else alpha / rank)
    if "dora_scale" in parts:
        change = _decomposed(parts["dora_scale"], weight, change) - weight
    return weight + strength * change


Found = tuple[Tensor, int | None] | None
"""A change without alpha / rank, and the rank."""


def _lora(parts: Mapping[str, Tensor]) -> Found:
    if "lora_up.weight" not in parts:
        return None
    up, down, mid = (parts.get(f"lora_{name}.weight") for name in ("up", "down", "mid"))
    assert up is not None
    assert down is not None
    if mid is None:
        return up.flatten(1) @ down.flatten(1), len(down)
    return torch.einsum("or,rs...,si->oi...", up.flatten(1), mid, down.flatten(1)), len(down)


def _loha(parts: Mapping[str, Tensor]) -> Found:
    if "hada_w1_a" not in parts:
        return None
    one, other = (_product(parts, f"hada_w{n}_a", f"hada_w{n}_b", f"hada_t{n}") for n in (1, 2))
    return one * other, len(parts["hada_w1_b"])


def _lokr(parts: Mapping[str, Tensor]) -> Found:
    """alpha / rank counts where one of both is a product; the rank is w2's if it is one."""
    w1, w2, rank = parts.get("lokr_w1"), parts.get("lokr_w2"), None
    if w1 is None:
        w1, rank = _product(parts, "lokr_w1_a", "lokr_w1_b", ""), len(parts["lokr_w1_b"])
    if w2 is None:
        w2, rank = _product(parts, "lokr_w2_a", "lokr_w2_b", "lokr_t2"), len(parts["lokr_w2_b"])
    if w2.ndim == 4:
        w1 = w1[:, :, None, None]
    return torch.kron(w1, w2.contiguous()), rank  # ComfyUI's product fails in tucker form, as w2 is transposed


def _product(parts: Mapping[str, Tensor], a: str, b: str, core: str) -> Tensor:
    if core in parts:
        return torch.einsum("ij...,ip,jr->pr...", parts[core], parts[a], parts[b])
    return parts[a] @ parts[b]


def _decomposed(scale: Tensor, weight: Tensor, change: Tensor) -> Tensor:
    """Norms of outputs come from the base weight, norms of inputs from the changed one."""
    over_base = scale.shape[0] == len(weight)
    of, keep = (weight, 0) if over_base else (weight + change, 1)
    others = [dim for dim in range(weight.ndim) if dim != keep]
    norms = of.square().sum(others, keepdim=True).sqrt()
    return (weight + change) * scale.reshape(norms.shape) / norms


def _rotations(blocks: Tensor, alpha: float) -> Tensor:
    """Return (I + Q)(I - Q)^-1; alpha above 0 is the largest norm of all Q together."""
    skew = blocks - blocks.mT
    if alpha > 0 and skew.norm() > alpha:
        skew = skew * alpha / skew.norm()
    eye = torch.eye(blocks.shape[-1], dtype=blocks.dtype)
    return (eye + skew) @ torch.linalg.inv(eye - skew)


def _oft(weight: Tensor, parts: Mapping[str, Tensor], alpha: float, strength: float) -> Tensor:
    """The rotation less I, transposed, times strength, which counts once more outside; `rescale` is not read."""
    turns = _rotations(parts["oft_blocks"], alpha)
    less = torch.block_diag(*turns) - torch.eye(len(weight), dtype=weight.dtype)
    return (strength * less.T @ weight.flatten(1)).view(weight.shape)


def _boft(weight: Tensor, parts: Mapping[str, Tensor], alpha: float, strength: float) -> Tensor:
    """Stage i rotates rows that are 2^i half blocks apart; each is strength times rotation plus the rest of I."""
    turned = weight.flatten(1)
    for stage, turns in enumerate(_rotations(parts["oft_blocks"], alpha)):
        size = turns.shape[-1]
        reach = 2**stage * (size // 2)
        order = torch.arange(len(weight)).view(-1, 2, reach).mT.flatten()
        whole = torch.block_diag(*(strength * turns + (1 - strength) * torch.eye(size, dtype=turns.dtype)))
        next_rows = torch.empty_like(turned)
        next_rows[order] = whole @ turned[order]
        turned = next_rows
    turned = turned.view(weight.shape)
    if "rescale" in parts:
        turned = turned * parts["rescale"].reshape(-1, *[1] * (weight.ndim - 1))
    return turned - weight
