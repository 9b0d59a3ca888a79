"""How many values an adapter trains, and its memory besides their masters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from sd_scripts.families.cards.family_card import DENOISER
from sd_scripts.families.cards.memory_facts import MemoryFacts, Projection
from sd_scripts.families.cards.registry import is_built_in_network
from sd_scripts.networks.lokr_sizes import MULTIPLE, LokrSizes
from sd_scripts.options.networks.network import DEFAULT_DIM, NetworkOptions
from sd_scripts.options.networks.network_args import NetworkArguments
from sd_scripts.options.networks.network_types import BuiltIn, read_items
from sd_scripts.settings.network_choice import read_lokr_sizes

VALUES_OF_KINDS = {"loha": 2.0, "oft": 0.5, "boft": 4.0}
"""Adapter kind -> trained values at a rank, or block size, relative to LoRA's; OFT's hold for blocks below half a
layer's root."""
NEAR_ROOT = 35
"""LoKr with factor -1: about the larger size of its matrices, which are square roots of a layer's."""


@dataclass(frozen=True, kw_only=True)
class AdapterMemory:
    """The adapters of a run, in values. Frozen weights have the dtype that the model computes with."""

    network: NetworkOptions
    facts: MemoryFacts
    encoders: Sequence[str] = ()
    """Text encoders that are adapted."""
    plain: bool = True
    """Whether the denoiser's weights are not quantized."""
    compiled: bool = False
    checkpointed: bool = False
    swaps: bool = False
    """Whether blocks are swapped. Layers as large as swapped ones are not folded, so that blocks share graphs."""

    @property
    def trained(self) -> int:
        """Number of trained values."""
        values = self._norms
        for name in self._adapted:
            values += self._of_layers(self.facts.lora.get(name, 0), self.facts.values[name], self._dim)
        if DENOISER in self._adapted:
            values += self._of_layers(self.facts.lora_conv, self.facts.values[DENOISER], self._conv_dim)
        return values

    @property
    def held(self) -> float:
        """Tensors the layers compute with: copies of the masters, joint matrices, and DoRA's gains."""
        values = float(self.trained - self._norms)
        alone = self._kind == "lora" and not self.encoders and not self._conv_dim and not self.swaps
        if alone and self._folded and len(self._folded) == len(self.facts.projections):
            values = 0.0  # all copies are in joint matrices
        if self.plain:  # the products from which DoRA's gains are computed together (networks/folded/gains.py)
            values += self._norms * self._dim
        return values + sum(joint for _, joint in self.joint_matrices())

    @property
    def kept(self) -> float:
        """Memory of folded layers for the backward pass, for each unit, beyond a measured LoRA's."""
        values = 0.0
        if self.checkpointed:
            return values
        for projection, ranks in self._folded:
            widths = sum(ranks) - len(ranks) * self.facts.measured_rank
            if self.is_dora and not projection.kept:
                widths += sum(projection.outputs)
            values += projection.count * projection.rows * widths
        return values

    def joint_matrices(self) -> Iterator[tuple[Projection, float]]:
        """Yield the size of all joint matrices of each projection besides base weights."""
        for projection, ranks in self._folded:
            rank = sum(ranks)
            yield projection, projection.count * rank * (projection.inputs + sum(projection.outputs) + rank)

    @property
    def is_dora(self) -> bool:
        """Whether it is a LoRA with trained norms of the outputs."""
        learns_norms = self._arguments.flag("dora_wd") and self._arguments.flag("wd_on_output", default=True)
        return self._built_in is not None and self._kind == "lora" and learns_norms

    @property
    def folds(self) -> bool:
        """Whether Linear layers of the denoiser compute in one product with their base weights."""
        kind = "dora" if self.is_dora else self._kind
        own = self._built_in is not None and not self.network.draws and kind in self.facts.folded_kinds
        if not (own and self.compiled and self.plain and DENOISER in self._adapted):
            return False
        decomposes = self._arguments.flag("dora_wd")
        if self._kind == "lokr":
            return not decomposes and not self.checkpointed
        return self._kind == "lora" and self.network.lora_init == "default" and (self.is_dora or not decomposes)

    @cached_property
    def _built_in(self) -> BuiltIn | None:
        """None: an external network."""
        return self.network.built_in if is_built_in_network(self.network) else None

    @cached_property
    def _arguments(self) -> NetworkArguments:
        own = self._built_in.arguments if self._built_in else read_items(self.network.network_args)
        return NetworkArguments({**self.network.shared_arguments, **own})

    @property
    def _kind(self) -> str:
        return self._built_in.adapter if self._built_in else "lora"

    @property
    def _dim(self) -> int:
        return self.network.network_dim or DEFAULT_DIM

    @property
    def _conv_dim(self) -> int:
        default = self._dim if self._built_in and self._built_in.conv else 0
        return int(self._arguments.number("conv_dim") or default)

    @property
    def _adapted(self) -> list[str]:
        """The components that are adapted."""
        denoiser = [] if self.network.network_train_text_encoder_only else [DENOISER]
        return [*denoiser, *self.encoders]

    @property
    def _norms(self) -> int:
        if not self.is_dora:
            return 0
        return sum(self.facts.quantized.get(name, (0, 0))[1] for name in self._adapted)

    def _of_layers(self, lora: int, values: int, dim: int) -> int:
        """Return about how many values an adapter trains in layers with this many `values`, where LoRA would train
        `lora` for each rank."""
        if self._kind != "lokr":
            return int(lora * dim * VALUES_OF_KINDS.get(self._kind, 1.0))
        factor = self.network.lokr_factor
        if factor < 0:  # both matrices are about as large as a LoRA of rank 1
            return int(min(lora, lora * dim / NEAR_ROOT))
        return int(min(values / factor**2, lora * dim / factor))

    @cached_property
    def _folded(self) -> list[tuple[Projection, list[int]]]:
        """The projections that are folded, with the rank of each of their layers."""
        if not self.folds:
            return []
        resident = (each for each in self.facts.projections if not (self.swaps and each.swappable))
        ranks = ((each, [self._rank(out, each.inputs) for out in each.outputs]) for each in resident)
        return [(each, of_layers) for each, of_layers in ranks if all(of_layers) and not sum(of_layers) % MULTIPLE]

    def _rank(self, out: int, into: int) -> int:
        if self._kind == "lora":
            return self._dim
        return LokrSizes.of(out, into, self._dim, read_lokr_sizes(self._arguments)).folded_rank
