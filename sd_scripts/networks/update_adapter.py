"""An adapter whose layer computes with an `Update`: LoHa, LoKr, and LoRA with weight decomposition or Tucker form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sd_scripts.formats.models.lora_keys import ALPHA, NORMS
from sd_scripts.library.quantization.quantized import compute_dtype, empty_weight
from sd_scripts.networks.adapter import Adapter, LayerPlan, Tensors, TrainedTensor, file_alpha
from sd_scripts.networks.layers import Dropouts
from sd_scripts.networks.updates import (
    Axis,
    Magnitudes,
    Update,
    UpdatedConv2d,
    UpdatedLinear,
    decomposed,
    norms_of,
    stored_weight,
)
from sd_scripts.options.networks.layer_rules import Rank

Shapes = dict[str, tuple[int, ...]]


class UpdateAdapter(Adapter):
    """One layer with an `Update`."""

    update_class: ClassVar[type[Update]]
    scaled: ClassVar[tuple[str, ...]]
    """Parts that may carry alpha / rank; the first that a layer has does. LoRA+ raises its learning rate."""

    update: Update

    @classmethod
    def shapes(cls, weight: Tensor, rank: int, options: Mapping[str, Any]) -> Shapes:
        """Return the parts of a layer with this weight, and their shapes."""
        raise NotImplementedError

    @classmethod
    def rank_of(cls, parts: Mapping[str, Tensor]) -> int | None:
        """Return the rank of a file's layer, or None if its parts are full matrices, which alpha does not scale."""
        raise NotImplementedError

    def start(self, ending: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor | None:
        """Return a part's initial values; None: 0."""
        raise NotImplementedError

    def __init__(self, plan: LayerPlan, base: nn.Module, dropouts: Dropouts):
        super().__init__(plan, base, dropouts)
        assert isinstance(base, nn.Linear | nn.Conv2d)
        axis: Axis | None = plan.options.get("axis")
        self._shapes: Shapes = plan.options.get("shapes") or self.shapes(empty_weight(base), plan.rank, plan.options)
        parts = {
            ending: nn.Parameter(base.weight.new_empty(shape, dtype=compute_dtype(base)))
            for ending, shape in self._shapes.items()
        }
        self.update = self.update_class(parts)
        self._scaled = next(ending for ending in self.scaled if ending in parts)
        if self.rank_of(parts) is None:
            self.alpha = self.scale = 1.0
        self.magnitudes = None if axis is None else Magnitudes(base, axis)
        self.layer = self.make_layer(base, dropouts)
        self.degree = len(parts)
        self.tensors = [
            TrainedTensor(copy=part, scale=self.scale, plus=True)
            if ending == self._scaled
            else TrainedTensor(copy=part)
            for ending, part in parts.items()
        ]
        if self.magnitudes:
            self.tensors.append(TrainedTensor(copy=self.magnitudes.norms, exact=True))

    def make_layer(self, base: nn.Linear | nn.Conv2d, dropouts: Dropouts) -> nn.Module:
        """Return the layer that computes with `update` and `magnitudes`."""
        if isinstance(base, nn.Conv2d):
            return UpdatedConv2d(base, self.update, dropouts, self.magnitudes)
        return UpdatedLinear(base, self.update, dropouts, self.magnitudes)

    @property
    def own(self) -> dict[str, nn.Parameter]:
        """The masters of the parts, by ending."""
        return dict(zip(self._shapes, self.masters, strict=False))

    def initialize(self, generator: torch.Generator) -> None:
        for ending, master in self.own.items():
            values = self.start(ending, tuple(master.shape), generator)
            if values is not None:
                master.copy_(values)
        if self.magnitudes:
            self.masters[-1].copy_(self.magnitudes.squares.sqrt().view(self.masters[-1].shape))

    def file_tensors(self) -> Tensors:
        tensors: Tensors = {"alpha": torch.tensor(self.alpha, dtype=torch.float64)}
        tensors |= {ending: master.detach() for ending, master in self.own.items()}
        return {**tensors, **({NORMS: self.masters[-1].detach()} if self.magnitudes else {})}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._require_same_form(tensors)
        for ending, master in self.own.items():
            master.copy_(tensors[ending].reshape(master.shape))
        rank = self.rank_of(tensors)
        if rank is not None:
            self.own[self._scaled].mul_(file_alpha(tensors, rank) / rank / self.scale)
        if not self.magnitudes:
            return
        if NORMS in tensors:
            self.masters[-1].copy_(tensors[NORMS].reshape(self.masters[-1].shape))
            return
        weight = stored_weight(self.layer).float()
        changed = weight + self.delta(tensors, weight).view(weight.shape)
        self.masters[-1].copy_(norms_of(changed, self.magnitudes.axis).view(self.masters[-1].shape))

    def _require_same_form(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise ValueError if a file's layer has other parts or sizes than this one."""
        remedy = "turn on dim_from_weights, or set network_dim and network_args to the file's"
        theirs = {ending for ending in tensors if ending not in ("alpha", NORMS)}
        if theirs != set(self.own):
            raise ValueError(
                f"network_weights: {self.name} has {', '.join(sorted(theirs))} in the file and "
                f"{', '.join(sorted(self.own))} here; {remedy}"
            )
        if NORMS in tensors and not self.magnitudes:
            raise ValueError(f"network_weights: {self.name} has {NORMS} in the file; turn on dora_wd")
        if NORMS in tensors and tensors[NORMS].numel() != self.masters[-1].numel():
            raise ValueError(
                f"network_weights: {self.name} has {NORMS} for each {'input' if self.magnitudes else 'output'} in the "
                "file; change wd_on_output"
            )
        for ending, master in self.own.items():
            if tensors[ending].numel() != master.numel():
                raise ValueError(
                    f"network_weights: {self.name} has {ending} of {tuple(tensors[ending].shape)} in the file and "
                    f"{tuple(master.shape)} here; {remedy}"
                )

    @classmethod
    def rank_in_file(cls, tensors: Mapping[str, Tensor], split_dims: tuple[int, ...]) -> tuple[Rank, tuple[int, ...]]:
        rank = cls.rank_of(tensors)
        return (Rank(1, 1.0) if rank is None else Rank(rank, file_alpha(tensors, rank))), ()

    @classmethod
    def options_in_file(cls, tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
        axis = None
        norms = tensors.get(NORMS)
        if norms is not None:
            axis = "in" if norms.shape[0] == 1 and norms.numel() > 1 else "out"
        own = {ending: tuple(tensor.shape) for ending, tensor in tensors.items() if ending not in ("alpha", NORMS)}
        return {"axis": axis, "shapes": own}

    @classmethod
    def sizes_in_file(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int | None]:
        parts = {ending: tensor for ending, tensor in tensors.items() if ending not in (ALPHA, NORMS)}
        try:
            if any(part.ndim < 2 for part in parts.values()):
                raise ValueError
            weight = cls.update_class({ending: part.to("meta") for ending, part in parts.items()}).weight()
            out = len(weight)
            into = weight[0].numel()
        except (RuntimeError, IndexError, ValueError, AttributeError):  # it depends on the kind
            listed = " and ".join(f"{ending} of {tuple(part.shape)}" for ending, part in parts.items())
            raise ValueError(f"{listed}, which do not fit together") from None
        norms = tensors.get(NORMS)
        if norms is not None and norms.numel() != out and (len(norms) != 1 or into % norms.numel()):
            raise ValueError(f"{NORMS} of {tuple(norms.shape)} for a weight of {out} outputs and {into} inputs")
        return out, into

    @classmethod
    def delta(cls, tensors: Mapping[str, Tensor], weight: Tensor, strength: float = 1.0) -> Tensor:
        parts = {e: t.to(weight.device).float() for e, t in tensors.items() if e not in ("alpha", NORMS)}
        rank = cls.rank_of(parts)
        scale = 1.0 if rank is None else file_alpha(tensors, rank) / rank
        change = cls.update_class(parts).weight().view(weight.shape) * scale
        if NORMS in tensors:
            norms = tensors[NORMS].to(weight.device).float()
            change = decomposed(norms, weight.float() + change) - weight.float()
        return change.flatten(1) * strength

    def norm(self) -> Tensor:
        """Return the norm of the change, without weight decomposition, as LyCORIS limits it."""
        return type(self.update)(dict(self.own)).weight().norm() * self.scale

    def scale_update(self, root: Tensor) -> None:
        for master in self.own.values():
            master.mul_(root)


def kaiming_uniform(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return values like torch's initialisation of a layer (a = sqrt(5))."""
    bound = 1 / math.sqrt(math.prod(shape[1:]))
    return torch.empty(tuple(shape)).uniform_(-bound, bound, generator=generator)


def normal(shape: Sequence[int], deviation: float, generator: torch.Generator) -> Tensor:
    return torch.empty(tuple(shape)).normal_(0.0, deviation, generator=generator)
