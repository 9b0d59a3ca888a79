"""The protocol of adapter kinds. LoRA is one (adapters/lora.py); each further kind is one file next to it.

An adapter puts a layer of its own in place of the layer that it adapts. Each of its trained tensors has a float32
master, which the optimizer updates, and a copy in the model's dtype, which the layer computes with; the network
(network.py) keeps both in flat buffers, and does not care how many tensors an adapter has.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from sd_scripts.formats.models.lora_keys import ALPHA
from sd_scripts.networks import adapters
from sd_scripts.networks.layers import Dropouts
from sd_scripts.options.networks.layer_rules import Rank

Tensors = dict[str, Tensor]


class Group(NamedTuple):
    """Layers that share a learning rate."""

    name: str
    """As in logs: `unet`, `textencoder 1`, `unet_block4`."""
    lr: float
    plus: float | None = None
    """LoRA+ ratio: learning rate of the tensors marked `plus` relative to the others."""


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """How to adapt one layer."""

    name: str
    module: nn.Module
    path: str
    kind: type[Adapter]
    rank: int
    alpha: float
    group: Group
    split_dims: tuple[int, ...] = ()
    """Output sizes of splits that each get their own adapter of this rank and alpha; () means one for all."""
    split_option: str = ""
    """The option that asks for them, for messages."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The result of the kind's read_options."""

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclass(frozen=True, kw_only=True)
class TrainedTensor:
    """One tensor that an adapter trains."""

    copy: nn.Parameter
    """The parameter that the adapter's layer computes with."""
    scale: float = 1.0
    """Factor from the master to the copy, so that the layer need not multiply by alpha / rank."""
    plus: bool = False
    """Whether LoRA+ raises its learning rate."""
    exact: bool = False
    """Whether the layer computes with the master itself, in float32; `scale` is 1 then."""


class Adapter(ABC):
    """One adapted layer.

    `__init__` makes `layer` from the base layer and lists its parameters in `tensors`; the network then sets `masters`,
    in the same order, and calls `initialize`.
    """

    kind: ClassVar[str]
    """Its name in network_args: `adapter=lora`."""
    endings: ClassVar[tuple[str, ...]]
    """Names of its tensors in files, after the name of the layer."""
    forms: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Sets of endings: a file's layer of this kind has all members of one of them; () means all `endings`."""
    degree: int = 1
    """How many trained tensors are multiplied: if each is scaled by f, the update is scaled by f ** degree."""
    continues: ClassVar[tuple[str, ...]] = ()
    """Other kinds whose files it can start from."""
    splits: ClassVar[bool] = False
    """Whether it can have `split_dims`."""
    in_file: ClassVar[bool] = True
    """Whether the network's file contains it. An adapter with a file of its own (embeddings.py) changes no base
    weight."""

    layer: nn.Module
    tensors: list[TrainedTensor]
    masters: list[nn.Parameter]

    @abstractmethod
    def __init__(self, plan: LayerPlan, base: nn.Module, dropouts: Dropouts):
        self.plan = plan
        self.name = plan.name
        self.group = plan.group
        self.rank = plan.rank
        self.alpha = plan.alpha
        self.scale = plan.scale

    @abstractmethod
    def initialize(self, generator: torch.Generator) -> None:
        """Fill the masters, which are 0, with their initial values."""

    @abstractmethod
    def file_tensors(self) -> Tensors:
        """Return a file's tensors of this layer, by ending."""

    @abstractmethod
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a file's tensors of this layer. Raises ValueError if a rank or a width differs."""

    @classmethod
    @abstractmethod
    def rank_in_file(cls, tensors: Mapping[str, Tensor], split_dims: tuple[int, ...]) -> tuple[Rank, tuple[int, ...]]:
        """Return rank and alpha of a file's layer, and the `split_dims` if it is split so, else ()."""

    @classmethod
    def for_layer(cls, layer: nn.Module, options: Mapping[str, Any]) -> type[Adapter]:
        """Return the kind for one layer: a simpler one where these options mean the same there."""
        return cls

    @classmethod
    def check(cls, name: str, layer: nn.Module, rank: int, options: Mapping[str, Any]) -> None:
        """Raise ValueError naming the option if a layer of this size cannot be adapted so."""
        return

    @classmethod
    def options_in_file(cls, tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
        """Return the LayerPlan.options for a layer like a file's (dim_from_weights)."""
        return {}

    @classmethod
    def reads(cls, tensors: Mapping[str, Tensor]) -> bool:
        """Return whether the tensors of a file's layer, by ending, are of this kind."""
        return any(all(ending in tensors for ending in form) for form in cls.forms or (cls.endings,))

    @classmethod
    def sizes_in_file(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int | None] | None:
        """Return (out, in · kh · kw) of the weight that a file's layer is for, as far as its tensors show.

        Raises ValueError, to follow "has", if the shapes of the tensors do not fit together.
        """
        return None

    @classmethod
    @abstractmethod
    def delta(cls, tensors: Mapping[str, Tensor], weight: Tensor, strength: float = 1.0) -> Tensor:
        """Return a file layer's change of the base `weight` (out, ...), times `strength`: float32 (out, in)."""

    def norm(self) -> Tensor:
        """Return the norm of the layer's change of its base weight."""
        return self.delta(self.file_tensors(), self.layer.weight).norm()  # type: ignore[arg-type]

    def scale_update(self, root: Tensor) -> None:
        """Scale the masters so that the update is multiplied by root ** degree."""
        for master in self.masters:
            master.mul_(root)

    perturbable = False
    """Whether `row_squares` is there and the layer adds `row_noise` to its base weight (ggpo_beta, ggpo_sigma)."""

    def row_squares(self) -> tuple[Tensor, Tensor]:
        """Return (out,), (out,): squared norms of the rows of the update and of its gradient, both without `scale`."""
        raise NotImplementedError


Kind = TypeVar("Kind", bound=type[Adapter])
_kinds: dict[str, type[Adapter]] = {}


def register(kind: Kind) -> Kind:
    """Class decorator: register an adapter kind by its name."""
    _kinds[kind.kind] = kind
    return kind


def adapter_kinds() -> Mapping[str, type[Adapter]]:
    """Return all kinds, in the order of their names: the files in `adapters`, and any others registered."""
    _import_adapters()
    return dict(sorted(_kinds.items()))


@cache
def _import_adapters() -> None:
    for module in pkgutil.iter_modules(adapters.__path__):
        importlib.import_module(f"{adapters.__name__}.{module.name}")


def read_layer(tensors: Mapping[str, Tensor], name: str) -> tuple[type[Adapter], Tensors] | None:
    """Return the kind and the tensors, by ending, of the layer `name` of a file, or None.

    If several kinds fit, such as one that adds a tensor to another's, the one with more of them is meant.
    """
    of_layer = {e: tensors[f"{name}.{e}"] for e in known_endings() if f"{name}.{e}" in tensors}
    if (kind := kind_of(of_layer)) is None:
        return None
    return kind, {ending: tensor for ending, tensor in of_layer.items() if ending in (*kind.endings, ALPHA)}


def known_endings() -> list[str]:
    """Return the endings of the tensors of all kinds."""
    return list(dict.fromkeys([ALPHA, *(ending for kind in adapter_kinds().values() for ending in kind.endings)]))


def kind_of(of_layer: Mapping[str, Tensor]) -> type[Adapter] | None:
    """Return the kind of a file's layer from its tensors by ending, None if they are none's."""
    fitting = [kind for kind in adapter_kinds().values() if kind.reads(of_layer)]
    return max(fitting, key=lambda kind: len(of_layer.keys() & {*kind.endings}), default=None)


def layer_names(tensors: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the adapted layers in a file."""
    forms = [form for kind in adapter_kinds().values() for form in kind.forms or (kind.endings,)]
    endings = {f".{form[0]}" for form in forms}
    return {key.removesuffix(ending) for key in tensors for ending in endings if key.endswith(ending)}


def file_alpha(tensors: Mapping[str, Tensor], rank: int) -> float:
    """Return the alpha of a file's layer; a missing or zero alpha means the rank."""
    return float(tensors["alpha"]) or float(rank) if "alpha" in tensors else float(rank)
