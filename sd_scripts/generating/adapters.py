"""Apply adapter files to a model by merging, from its file's own weights: removing it leaves no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from sd_scripts.families.common.components import DENOISER, Components
from sd_scripts.families.common.experts import HIGH, LOW, TRAINED, Experts
from sd_scripts.families.common.family import Family
from sd_scripts.library.quantization import fp8
from sd_scripts.library.quantization.quantized import add_, format_of
from sd_scripts.networks.files.lora_files import LoraFile, added, read_lora
from sd_scripts.networks.plan import AdaptedModule
from sd_scripts.networks.targets import readable
from sd_scripts.networks.updates import dense_weight
from sd_scripts.settings.generate_settings import AdapterFile

OPTION = "lora_weights"


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """An adapter file in memory."""

    file: AdapterFile
    lora: LoraFile
    layers: frozenset[str]
    """The names of its layers that the model has."""
    written: int
    """When the file was last written."""

    def is_for(self, component: str, experts: Experts | None) -> bool:
        """Return whether the component, which may be one of two models for different noise, gets it."""
        if experts is None:
            return not self.file.high_noise
        if component not in (DENOISER, experts.component):
            return True
        high = component == experts.component
        if self.file.high_noise is None:
            return (HIGH if high else LOW) in self.lora.metadata.get(TRAINED, LOW)
        return self.file.high_noise == high

    @classmethod
    def read(cls, file: AdapterFile, family: Family, components: Components, warn: Callable[[str], None]) -> Adapter:
        """Read the file under our names of the layers; warn of unused tensors.

        Raises ValueError if it has no layer of this model, or a shape differs.
        """
        written = written_at(file.path)
        modules = modules_of(family, components)
        lora = read_lora(OPTION, file.path, modules)
        if not lora.known:
            raise ValueError(f"{OPTION}: '{file.path}' has no layer of this model; choose an adapter made for it")
        lora.require_fit(modules)
        for sentence in lora.not_used():
            warn(sentence)
        return cls(file=file, lora=lora, layers=frozenset(lora.known), written=written)


def written_at(path: Path) -> int:
    """Return when a file was last written, 0 if it is gone: a training may have replaced it."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def component_names(components: Components) -> list[str]:
    """Return the names of the components that can be adapted."""
    second = [components.experts.component] if components.experts else []
    return [DENOISER, *components.encoder_names, *second]


def modules_of(family: Family, components: Components) -> list[AdaptedModule]:
    """Return the denoiser and the text encoders as adapters see them, loaded or not."""
    modules = [components.denoiser, *components.text_encoders]
    targets = [family.lora, *family.lora_text_encoders]
    return [AdaptedModule(module=each, target=target, lr=0.0) for each, target in zip(modules, targets, strict=True)]


def layers_of(family: Family, components: Components, name: str) -> dict[str, tuple[str, nn.Module]]:
    """Return each layer of a component that can be adapted: name in files -> its path and the layer."""
    encoders = dict(zip(components.encoder_names, family.lora_text_encoders, strict=True))
    target = encoders.get(name, family.lora)
    return {target.name(path): (path, layer) for path, layer in readable(components.module(name))}


@torch.no_grad()
def merge(
    layers: Iterable[tuple[str, nn.Module]], adapters: Sequence[Adapter], device: torch.device, dtype: torch.dtype
) -> None:
    """Add the adapters to layers, by name, that have the weights of the model's file and compute in `dtype`. They are
    added up in float32 on `device`, and rounded once."""
    for name, layer in layers:
        if not any(name in adapter.layers for adapter in adapters):
            continue
        if isinstance(layer, nn.Linear) and layer.weight.dtype == fp8.STORAGE and not format_of(layer):
            fp8.quantize_(layer, dtype)  # as its file has it
        weight: Tensor = layer.weight  # type: ignore[assignment]
        if (change := _change(name, dense_weight(layer).to(device), adapters)) is None:
            continue
        if isinstance(layer, nn.Linear) and format_of(layer):
            add_(layer, change.to(weight.device))
        else:
            weight.copy_(added(weight.to(device), change, weight.dtype, f"{OPTION}: {name} with adapters"))


@torch.no_grad()
def replace(
    layers: Iterable[tuple[str, tuple[str, nn.Module]]], originals: dict[str, Tensor], adapters: Sequence[Adapter]
) -> None:
    """Write the weights of the model's file, by path, with the adapters added, into these layers, in place: nothing is
    compiled again, and the result is the same as from `merge` into a model just loaded."""
    for name, (path, layer) in layers:
        weight: Tensor = layer.weight  # type: ignore[assignment]
        original = originals[f"{path}.weight"].to(weight.device, weight.dtype).reshape(weight.shape)
        change = _change(name, original, adapters)
        what = f"{OPTION}: {name} with adapters"
        weight.copy_(original if change is None else added(original, change, weight.dtype, what))


def _change(name: str, weight: Tensor, adapters: Sequence[Adapter]) -> Tensor | None:
    """Return the adapters' change of a layer's weight, float32 and of its shape; None if they have no such layer."""
    every = (adapter.lora.change(name, weight, adapter.file.strength) for adapter in adapters)
    changes = [change for change in every if change is not None]
    return sum(changes[1:], changes[0]) if changes else None


def title_of(path: Path) -> str:
    """Return the name of an adapter as prompts of other programs write it."""
    return path.name.removesuffix(path.suffix)
