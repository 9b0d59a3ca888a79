"""Where the weight of each adaptable layer is in the files of a model, so that they can be changed tensor by tensor.

Families define how the tensors of a file become a module's (`Layout`): by renaming, joining or splitting rows. Here
the same functions are applied to tensors of row numbers instead of values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from sd_scripts.families.cards.family_card import VAE, ComponentCard
from sd_scripts.families.common.family import Family
from sd_scripts.families.common.layouts import Layout
from sd_scripts.families.common.loading import make_empty, shapes_of
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.library.files.state_dicts import State
from sd_scripts.networks.plan import AdaptedModule
from sd_scripts.networks.targets import LoraTarget, adaptable, readable

ROWS = 1 << 32
"""Upper bound of the rows of a tensor: a row's number is its tensor's number times this, plus its own place."""


@dataclass(frozen=True)
class Rows:
    """Rows of a file's tensor that are rows of a layer's weight."""

    key: str
    first: int
    """In the tensor of the file."""
    at: int
    """In the layer's weight."""
    count: int


@dataclass(frozen=True)
class LayerRows:
    """A layer that adapters can change, and where its weight is in a file."""

    name: str
    """In LoRA files."""
    shape: tuple[int, ...]
    """Of the layer's weight, (out, in) or (out, in, kh, kw)."""
    rows: tuple[Rows, ...]

    def weight(self, read: Callable[[str], Tensor]) -> Tensor:
        """Return the weight in float32 and in memory of its own; `read` returns a tensor of the file."""
        parts = [read(rows.key)[rows.first : rows.first + rows.count].float() for rows in self.rows]
        return torch.cat([part.reshape(len(part), *self.shape[1:]) for part in parts])


@dataclass(frozen=True)
class FoundModule:
    """A component that a file contains, as a module without weights."""

    component: ComponentCard
    module: nn.Module
    target: LoraTarget
    layers: tuple[LayerRows, ...]

    @property
    def trained_layers(self) -> list[LayerRows]:
        """The layers that adapters are trained for by default."""
        names = {self.target.name(path) for path, _ in adaptable(self.module, self.target, conv=True)}
        return [layer for layer in self.layers if layer.name in names]


def adapted_components(family: Family) -> dict[str, LoraTarget]:
    """Return the components that adapters change, by name: the denoiser, then the text encoders."""
    names = [component.name for component in family.card.files.components if component.name != VAE]
    return dict(zip(names, (family.lora, *family.lora_text_encoders), strict=False))


def find_modules(family: Family, header: Header, option: str, path: Path) -> dict[str, FoundModule]:
    """Return the components in a file that adapters change, by name.

    Raises ValueError, one sentence that names the option, if a component is incomplete.
    """
    modules = {}
    for component in family.card.files.components:
        target = adapted_components(family).get(component.name)
        prefix = component.prefix_in(header.shapes)
        if target is None or prefix is None:
            continue
        shapes = {key.removeprefix(prefix): each for key, each in header.shapes.items() if key.startswith(prefix)}
        layout = family.layouts[component.name]
        module = _empty_module(layout, shapes, option, path, prefix)
        labels = _labelled(layout, shapes, module)
        keys = [prefix + key for key in shapes]
        layers = tuple(_layers(module, target, labels, keys))
        modules[component.name] = FoundModule(component, module, target, layers)
    return modules


def adapted_modules(family: Family, found: Mapping[str, FoundModule]) -> list[AdaptedModule]:
    """Return all modules in the order of the family, as names in LoRA files count on it; an absent one is empty."""
    return [
        AdaptedModule(module=found[name].module if name in found else nn.Module(), target=target, lr=0.0)
        for name, target in adapted_components(family).items()
    ]


def _empty_module(
    layout: Layout, shapes: Mapping[str, tuple[int, ...]], option: str, path: Path, prefix: str
) -> nn.Module:
    empty = {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
    try:
        unified = shapes_of(layout.unify(empty))
    except ValueError as problem:
        raise ValueError(f"{option}: '{path}' is incomplete: {problem}") from None
    return make_empty(lambda: layout.make(unified), option, path, prefix)


def _labelled(layout: Layout, shapes: Mapping[str, tuple[int, ...]], module: nn.Module) -> State:
    """Return the module's tensors with the numbers of their rows in the file."""
    file = {key: _labels(number, shape) for number, (key, shape) in enumerate(shapes.items())}
    return layout.read(layout.unify(file), module.state_dict().keys())


def _labels(number: int, shape: tuple[int, ...]) -> Tensor:
    """Return (out, 1, ...) int64: one number for each row of a tensor, which is all that layouts move."""
    rows = shape[0] if shape else 1
    return (torch.arange(rows) + number * ROWS).view(shape[:1] + (1,) * (len(shape) - 1))


def _layers(module: nn.Module, target: LoraTarget, labels: State, keys: list[str]) -> Iterator[LayerRows]:
    for path, layer in readable(module):
        row_labels = labels.get(f"{path}.weight")
        if row_labels is not None and len(row_labels) == len(layer.weight):
            yield LayerRows(target.name(path), tuple(layer.weight.shape), tuple(_runs(row_labels.flatten(), keys)))


def _runs(labels: Tensor, keys: list[str]) -> Iterator[Rows]:
    """Yield the runs of consecutive rows of one tensor."""
    breaks = (labels.diff() != 1).nonzero().flatten() + 1
    at = 0
    for run in labels.tensor_split(breaks.tolist()):
        number, first = divmod(int(run[0]), ROWS)
        yield Rows(keys[number], first, at, len(run))
        at += len(run)
