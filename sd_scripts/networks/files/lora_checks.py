"""Check the tensors of a LoRA file before anything is computed with them: numbers, completeness, sizes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sd_scripts.formats.models.lora_keys import ALPHA, DOWN, NORMS, PEFT_NORMS, LoraKeys
from sd_scripts.formats.models.peft_header import PeftHeader
from sd_scripts.formats.words import printable
from sd_scripts.networks.adapter import Tensors, adapter_kinds, kind_of
from sd_scripts.networks.files.lora_names import Layers

LARGEST = torch.finfo(torch.float32).max
ANOTHER = "choose another file, such as an earlier checkpoint"


def checked_layers(raw: Tensors, keys: LoraKeys, header: PeftHeader) -> Layers:
    """Return the tensors of each layer by ending; the factors of a LoRA always with an alpha, which only the header may
    state.

    Raises ValueError, to follow the file's name, for a tensor or a layer that cannot be used.
    """
    layers = Layers()
    for layer, own in keys.layers.items():
        tensors = {ending: raw[key] for ending, key in own.items()}
        scale = 1.0
        for ending, tensor in tensors.items():
            norm = norm_of(tensor)
            if why := _problem(ending, tensor, norm):
                raise ValueError(f"has {why} in {printable(own[ending])}; {ANOTHER}")
            scale *= 1.0 if ending == NORMS else norm or (ending == ALPHA)  # an alpha of 0 means the rank
        if NORMS in own and PEFT_NORMS.fullmatch(own[NORMS]):  # (out,), or (1, out, 1, 1) of a convolution
            tensors[NORMS] = tensors[NORMS].reshape(-1, 1)
        _require_complete(layer, own, tensors)
        if not is_finite(scale):
            raise ValueError(f"has values in the layer {printable(layer)} whose product is infinite; {ANOTHER}")
        if ALPHA not in tensors and DOWN in tensors:
            rank = len(tensors[DOWN])
            alpha = header.alpha(layer, rank)
            tensors[ALPHA] = torch.tensor(float(rank) if alpha is None else alpha)
        layers[layer] = tensors
    return layers


def _problem(ending: str, tensor: Tensor, norm: float) -> str:
    """Return what is wrong with a tensor by itself; "" if nothing is."""
    if ending == ALPHA:
        if tensor.numel() != 1:
            return "no single number"
    elif not tensor.is_floating_point():
        return "whole numbers without the scales that make weights of them"
    elif not tensor.numel() or not tensor.ndim:
        return f"no matrix, but the shape {tuple(tensor.shape)},"
    return "" if is_finite(norm) else "NaN or infinity"


def is_finite(norm: float) -> bool:
    """Return whether a number is finite in float32, in which updates are computed."""
    return abs(norm) <= LARGEST


def norm_of(tensor: Tensor) -> float:
    """Return the norm of a tensor; NaN or infinity if one of its values is."""
    floats = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
    return float(torch.linalg.vector_norm(floats, dtype=torch.float64))


def _require_complete(layer: str, keys: Mapping[str, str], tensors: Tensors) -> None:
    """Raise ValueError unless the tensors belong to one adapter kind, and fit together."""
    name = printable(layer)
    first = printable(next(iter(keys.values())))
    kind = kind_of(tensors)
    if kind is None:
        forms = [form for kind in adapter_kinds().values() for form in kind.forms or (kind.endings,)]
        nearest = max(forms, key=lambda form: (len(tensors.keys() & {*form}), -len(form)))
        missing = [ending for ending in nearest if ending not in tensors]
        lacking = f"but not its {' and '.join(missing)}" if missing else "of a shape that is not known"
        raise ValueError(f"is incomplete: of the layer {name} it has {first}, {lacking}; choose a complete file")
    if extra := tensors.keys() - {*kind.endings, ALPHA}:
        raise ValueError(f"has the layer {name} both as {kind.kind} and with {', '.join(sorted(extra))}; {ANOTHER}")
    try:
        kind.sizes_in_file(tensors)
    except ValueError as problem:
        raise ValueError(f"has in the layer {name} {problem}; {ANOTHER}") from None
