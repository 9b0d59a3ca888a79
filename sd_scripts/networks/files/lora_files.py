"""Read LoRA files: the one reader for training, generating and the tools.

Everything in a file is used or named: a tensor that is damaged, or that belongs to a layer but is not understood, is an
error; layers that the model does not have, and tensors of no layer, are listed for a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from sd_scripts.formats.models.lora_keys import (
    ALPHA,
    DOWN,
    NORMS,
    PEFT_NORMS,
    LoraKeys,
    group_keys,
    left_out,
    misunderstood,
    not_in_model,
    without_layers,
)
from sd_scripts.formats.models.peft_header import PeftHeader
from sd_scripts.formats.models.safetensors_header import SAFETENSORS, read_header
from sd_scripts.formats.words import printable
from sd_scripts.library.compile_utils import maybe_uncompile_state_dict
from sd_scripts.library.files.model_reader import read_weights
from sd_scripts.library.quantization import fp8
from sd_scripts.library.quantization.quantized import add_, empty_weight, format_of
from sd_scripts.networks.adapter import Adapter, Tensors, adapter_kinds, kind_of, known_endings
from sd_scripts.networks.adapters.lora import Lora, Pair
from sd_scripts.networks.files.lora_names import Layers, with_our_names
from sd_scripts.networks.plan import AdaptedModule
from sd_scripts.networks.targets import readable
from sd_scripts.networks.updates import dense_weight

LARGEST = torch.finfo(torch.float32).max
ANOTHER = "choose another file, such as an earlier checkpoint"


@dataclass(frozen=True, kw_only=True)
class LoraFile:
    """A LoRA file in memory, whose tensors have been checked."""

    option: str
    """The option that names it."""
    path: Path
    layers: Mapping[str, tuple[type[Adapter], Tensors]]
    """Kind and tensors of each layer by name: sd-scripts' if the model has the layer, else the file's. The tensors are
    on the CPU, in the dtype of the file."""
    unknown: tuple[str, ...]
    """Names in `layers` that are not in the model."""
    ignored: tuple[str, ...]
    """Keys of tensors that belong to no layer."""
    metadata: Mapping[str, str]

    @cached_property
    def tensors(self) -> Tensors:
        """All tensors of the layers by key."""
        return {f"{name}.{ending}": each for name, (_, own) in self.layers.items() for ending, each in own.items()}

    @property
    def known(self) -> set[str]:
        """The names of the layers that the model has."""
        return self.layers.keys() - set(self.unknown)

    def pairs(self) -> dict[str, Pair]:
        """Return the factors of each layer. Raises ValueError if the file is not a plain LoRA."""
        if kinds := {kind.kind for kind, _ in self.layers.values() if kind is not Lora}:
            raise ValueError(
                f"{self.option}: '{self.path}' is {' and '.join(sorted(kinds))}, not a plain LoRA; merge it into a "
                "model instead"
            )
        return {name: Pair.read(tensors) for name, (_, tensors) in self.layers.items()}

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of most of its factors."""
        counts = Counter(tensor.dtype for tensor in self.tensors.values() if tensor.ndim > 1)
        return counts.most_common(1)[0][0] if counts else torch.float32

    def left_out(self) -> Iterator[str]:
        """Yield a sentence for tensors that belong to no layer."""
        yield from left_out(self.option, self.path, self.ignored)

    def not_used(self) -> Iterator[str]:
        """Yield a sentence for everything in the file that the model does not use."""
        yield from self.left_out()
        if self.unknown:
            yield not_in_model(self.option, self.path, self.unknown)

    def require_fit(self, modules: Iterable[AdaptedModule]) -> None:
        """Raise ValueError, one sentence, unless the shapes match the layers in `modules`."""
        for each in modules:
            for path, layer in readable(each.module):
                name = each.target.name(path)
                if name in self.layers and not self.fits(name, empty_weight(layer).shape):
                    raise ValueError(
                        f"{self.option}: '{self.path}': {name} has a different shape in the file than in this model; "
                        "choose a LoRA of the same kind of model"
                    )

    def fits(self, name: str, shape: torch.Size) -> bool:
        """Return whether a layer of the file is for a weight of this shape, as far as its tensors show."""
        kind, tensors = self.layers[name]
        sizes = kind.sizes_in_file(tensors)
        if sizes is None:
            return True
        out, inputs = sizes
        return out == shape[0] and inputs in (None, shape[1:].numel())

    def change(self, name: str, weight: Tensor, strength: float) -> Tensor | None:
        """Return the file's change of a layer's `weight` (out, in, ...) at a strength, float32 and of its shape; None
        if it does not have the layer."""
        if (layer := self.layers.get(name)) is None:
            return None
        kind, tensors = layer
        on_device = {ending: tensor.to(weight.device) for ending, tensor in tensors.items()}
        return kind.delta(on_device, weight, strength).view(weight.shape)


def read_lora(option: str, path: Path, modules: Iterable[AdaptedModule] = ()) -> LoraFile:
    """Read a LoRA file, with sd-scripts' names for the layers of `modules`, which are the denoiser, then the text
    encoders; without weights they may have other sizes than the file.

    Raises ValueError, one sentence that names the option, the file and the layer, if the file is damaged, of a
    different method, or only partly understood.
    """
    modules = list(modules)
    raw = maybe_uncompile_state_dict(read_weights(path, option))
    try:
        keys = group_keys(raw, known_endings())
        if why := misunderstood(keys) or without_layers(keys):
            raise ValueError(why)
        metadata = dict(read_header(path).metadata) if path.suffix in SAFETENSORS else {}
        layers = checked_layers(raw, keys, PeftHeader(metadata, keys.layers, path))
        known, unknown = with_our_names(layers, modules)
    except ValueError as problem:
        raise ValueError(f"{option}: '{path}' {problem}") from None
    kinds = {name: (kind_of(own), own) for name, own in sorted((known | unknown).items())}
    return LoraFile(
        option=option,
        path=path,
        layers={name: (kind, own) for name, (kind, own) in kinds.items() if kind},
        unknown=tuple(sorted(unknown)) if modules else (),
        ignored=tuple(keys.others),
        metadata=metadata,
    )


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
    """Return the problem of a single tensor; "" without one."""
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
        lacking = f"but not its {' and '.join(missing)}" if missing else "of an unknown shape"
        raise ValueError(f"is incomplete: of the layer {name} it has {first}, {lacking}; choose a complete file")
    if extra := tensors.keys() - {*kind.endings, ALPHA}:
        raise ValueError(f"has the layer {name} both as {kind.kind} and with {', '.join(sorted(extra))}; {ANOTHER}")
    try:
        kind.sizes_in_file(tensors)
    except ValueError as problem:
        raise ValueError(f"has in the layer {name} {problem}; {ANOTHER}") from None


def read_finite_tensors(option: str, path: Path) -> Tensors:
    """Read the tensors of a file for an external network, by the keys of the file. Raises ValueError, one sentence that
    names the option, the file and the key, if they are not usable numbers."""
    tensors = maybe_uncompile_state_dict(read_weights(path, option))
    for key, tensor in tensors.items():
        if tensor.is_floating_point() and not is_finite(norm_of(tensor)):
            raise ValueError(f"{option}: '{path}' has NaN or infinity in {printable(key)}; {ANOTHER}")
    return tensors


def added(weight: Tensor, change: Tensor, dtype: torch.dtype, what: str) -> Tensor:
    """Return weight + change, rounded once. Raises ValueError, which begins with `what`, if that is not finite."""
    total = (weight.float() + change).to(dtype)
    if not total.float().isfinite().all():
        raise ValueError(f"{what} does not fit into {str(dtype).removeprefix('torch.')}; use bf16, or a lower strength")
    return total


@torch.no_grad()
def merge(modules: Iterable[AdaptedModule], file: LoraFile, strength: float) -> int:
    """Add `strength` times the update of the file to every layer that it has; return how many these are.

    Raises ValueError naming the option if the shapes differ.
    """
    modules = list(modules)
    merged = 0
    file.require_fit(modules)
    for each in modules:
        for path, layer in readable(each.module):
            name = each.target.name(path)
            if name not in file.layers:
                continue
            if isinstance(layer, nn.Linear) and layer.weight.dtype == fp8.STORAGE and not format_of(layer):
                fp8.quantize_(layer, each.module.dtype)  # type: ignore[arg-type]  # as its file has it
            weight = layer.weight
            change = file.change(name, dense_weight(layer), strength)
            assert change is not None
            if isinstance(layer, nn.Linear) and format_of(layer):
                add_(layer, change)
            else:
                weight.copy_(added(weight, change, weight.dtype, f"{file.option}: {name} with '{file.path}'"))
            merged += 1
    return merged
