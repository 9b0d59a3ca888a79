"""How many values an adapter trains, and what it takes in memory beside their masters."""

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
from sd_scripts.options.networks.network_types import read_items
from sd_scripts.settings.network_choice import read_lokr_sizes

VALUES_OF_KINDS = {"loha": 2.0, "oft": 0.5, "boft": 4.0}
"""Adapter kind -> trained values at a rank, or block size, relative to LoRA's; OFT's hold for blocks below half a
layer's root."""
NEAR_ROOT = 35
"""LoKr with factor -1: about the larger size of its matrices, which are square roots of a layer's."""


@dataclass(frozen=True, kw_only=True)
class AdapterMemory:
    """The adapters of a run, in values. What is not trained has the dtype that the model computes with."""

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
        """How many values learn."""
        names = (*[DENOISER] * self._adapts_denoiser, *self.encoders)
        linear = sum(self._of_layers(self.facts.lora.get(name, 0), self.facts.values[name]) for name in names)
        conv = self._of_layers(self.facts.lora_conv, self.facts.values[DENOISER], self._conv_dim)
        return linear + conv * self._adapts_denoiser + self._norms

    @property
    def held(self) -> float:
        """What the layers compute with: copies of the masters, joint matrices, and DoRA's gains."""
        copies = 0 if self._moves_all_copies else self.trained - self._norms
        return copies + sum(values for _, values in self.joint_matrices()) + self._slopes

    @property
    def kept(self) -> float:
        """What folded layers keep for the backward pass, for each unit, beyond those of a measured LoRA."""
        if not self.folds or self.checkpointed:
            return 0.0
        of_ranks = sum(
            each.count * each.rows * (sum(ranks) - len(ranks) * self.facts.measured_rank)
            for each, ranks in self._folded()
        )
        outputs = sum(each.count * each.rows * sum(each.outputs) for each, _ in self._folded() if not each.kept)
        return of_ranks + (outputs if self.is_dora else 0.0)

    def joint_matrices(self) -> Iterator[tuple[Projection, float]]:
        """Yield what all joint matrices of each projection hold beside base weights."""
        for projection, ranks in self._folded():
            rank = sum(ranks)
            yield projection, projection.count * rank * (projection.inputs + sum(projection.outputs) + rank)

    @cached_property
    def _arguments(self) -> NetworkArguments:
        network = self.network
        own = network.built_in.arguments if is_built_in_network(network) else read_items(network.network_args)
        return NetworkArguments({**network.shared_arguments, **own})

    @property
    def _kind(self) -> str:
        return self.network.built_in.adapter if is_built_in_network(self.network) else "lora"

    @property
    def _dim(self) -> int:
        return self.network.network_dim or DEFAULT_DIM

    @property
    def _adapts_denoiser(self) -> bool:
        return not self.network.network_train_text_encoder_only

    @property
    def _conv_dim(self) -> int:
        chosen = self.network.built_in if is_built_in_network(self.network) else None
        return int(self._arguments.number("conv_dim") or (self._dim if chosen and chosen.conv else 0))

    def _of_layers(self, lora: int, values: int, dim: int | None = None) -> int:
        """Return about how many values an adapter trains in layers with so many `values`, of which LoRA would train
        `lora` for each rank."""
        dim = self._dim if dim is None else dim
        if self._kind != "lokr":
            return int(lora * dim * VALUES_OF_KINDS.get(self._kind, 1.0))
        factor = self.network.lokr_factor
        if factor < 0:  # both matrices are about as large as a LoRA of rank 1
            return int(min(lora, lora * dim / NEAR_ROOT))
        return int(min(values / factor**2, lora * dim / factor))

    @property
    def is_dora(self) -> bool:
        """Whether it is a LoRA with trained norms of the outputs."""
        learns_norms = self._arguments.flag("dora_wd") and self._arguments.flag("wd_on_output", default=True)
        return is_built_in_network(self.network) and self._kind == "lora" and learns_norms

    @property
    def _norms(self) -> int:
        names = (*[DENOISER] * self._adapts_denoiser, *self.encoders) if self.is_dora else ()
        return sum(self.facts.quantized.get(name, (0, 0))[1] for name in names)

    @property
    def _slopes(self) -> float:
        """The products from which DoRA's gains are computed together (networks/folded/gains.py)."""
        return self._norms * self._dim if self.plain else 0.0

    @property
    def folds(self) -> bool:
        """Whether Linear layers of the denoiser compute in one product with their base weights."""
        kind = "dora" if self.is_dora else self._kind
        own = is_built_in_network(self.network) and not self.network.draws and kind in self.facts.folded_kinds
        if not (own and self.compiled and self.plain and self._adapts_denoiser):
            return False
        decomposes = self._arguments.flag("dora_wd")
        if self._kind == "lokr":
            return not decomposes and not self.checkpointed
        return self._kind == "lora" and self.network.lora_init == "default" and (self.is_dora or not decomposes)

    def _folded(self) -> Iterator[tuple[Projection, list[int]]]:
        """Yield the projections that are folded, with the rank of each of their layers."""
        for projection in self.facts.projections if self.folds else ():
            if self.swaps and projection.swappable:
                continue
            ranks = [self._rank(out, projection.inputs) for out in projection.outputs]
            if all(ranks) and not sum(ranks) % MULTIPLE:
                yield projection, ranks

    def _rank(self, out: int, into: int) -> int:
        if self._kind == "lora":
            return self._dim
        return LokrSizes.of(out, into, self._dim, read_lokr_sizes(self._arguments)).folded_rank

    @property
    def _moves_all_copies(self) -> bool:
        """Whether all copies of the masters lie in joint matrices, and nowhere else."""
        alone = self._kind == "lora" and not self.encoders and not self._conv_dim and not self.swaps
        folded = sum(1 for _ in self._folded())
        return alone and bool(folded) and folded == len(self.facts.projections)
