"""Textual inversion: rows added to a text encoder's token embedding, which are all of it that is trained.

Gal et al. 2022, https://arxiv.org/abs/2208.01618. The rows are the one tensor of an adapter, so that masters, clipping,
EMA, resume and averaging between processes work as for a LoRA, with which they can share a network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.networks.adapter import Adapter, Group, LayerPlan, Tensors, TrainedTensor
from sd_scripts.networks.layers import Dropouts
from sd_scripts.networks.network import AdapterNetwork
from sd_scripts.options.networks.layer_rules import Rank

GROUP = "embedding"
"""Name of the learning rate in logs."""
INITIAL = "initial"
"""Key of LayerPlan.options with the initial rows."""


class ExtendedEmbedding(nn.Embedding):
    """A frozen embedding of V tokens, and trained rows for the ids from V on."""

    rows: nn.Parameter  # (n, D)

    def __init__(self, base: nn.Embedding, rows: int):
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = base.num_embeddings, base.embedding_dim
        self.padding_idx, self.max_norm, self.norm_type = base.padding_idx, base.max_norm, base.norm_type
        self.scale_grad_by_freq, self.sparse = base.scale_grad_by_freq, base.sparse
        self.weight = base.weight
        self.rows = nn.Parameter(base.weight.new_empty(rows, base.embedding_dim))
        self.train(base.training)

    def forward(self, ids: Tensor) -> Tensor:
        """Return (..., D) for ids (...)."""
        frozen = super().forward(ids.clamp(max=self.num_embeddings - 1))
        trained = F.embedding((ids - self.num_embeddings).clamp(min=0), self.rows)
        return torch.where((ids >= self.num_embeddings).unsqueeze(-1), trained, frozen)


class EmbeddingRows(Adapter):
    """The trained rows of one text encoder. LayerPlan.name is their key in files, its rank their number."""

    kind = GROUP
    endings = ("rows",)
    in_file = False

    def __init__(self, plan: LayerPlan, base: nn.Module, dropouts: Dropouts):
        super().__init__(plan, base, dropouts)
        assert isinstance(base, nn.Embedding)
        layer = self.layer = ExtendedEmbedding(base, plan.rank)
        self.tensors = [TrainedTensor(copy=layer.rows)]

    def initialize(self, generator: torch.Generator) -> None:
        self.masters[0].copy_(self.plan.options[INITIAL])

    def file_tensors(self) -> Tensors:
        return {self.endings[0]: self.masters[0].detach()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.masters[0].copy_(tensors[self.endings[0]])

    @classmethod
    def rank_in_file(cls, tensors: Mapping[str, Tensor], split_dims: tuple[int, ...]) -> tuple[Rank, tuple[int, ...]]:
        rows = len(tensors[cls.endings[0]])
        return Rank(rows, rows), ()

    @classmethod
    def delta(cls, tensors: Mapping[str, Tensor], weight: Tensor, strength: float = 1.0) -> Tensor:
        return torch.zeros_like(weight, dtype=torch.float32)  # the rows of the vocabulary stay unchanged


def plan_rows(encoder: nn.Module, key: str, initial: Tensor, lr: float) -> LayerPlan:
    """Return the plan that adds rows with these initial values (n, D) to the token embedding of a text encoder."""
    embedding = token_embedding(encoder)
    path = next(path for path, module in encoder.named_modules() if module is embedding)
    rows = len(initial)
    return LayerPlan(
        name=key,
        module=encoder,
        path=path,
        kind=EmbeddingRows,
        rank=rows,
        alpha=rows,
        group=Group(GROUP, lr),
        options={INITIAL: initial},
    )


def token_embedding(encoder: nn.Module) -> nn.Embedding:
    """Return the token embedding of a text encoder of transformers."""
    return encoder.get_input_embeddings()  # type: ignore[operator, no-any-return]


def initial_rows(weight: Tensor, ids: Iterable[int], count: int, generator: torch.Generator) -> Tensor:
    """Return (count, D) float32: the embeddings of these tokens, repeated or cut; without tokens random ones, with mean
    and standard deviation of the vocabulary's."""
    ids = list(ids)
    if ids:
        return weight[[ids[number % len(ids)] for number in range(count)]].float().cpu()
    deviation, mean = torch.std_mean(weight.float().cpu())
    return torch.randn((count, weight.shape[1]), generator=generator) * deviation + mean


def embedding_tensors(network: AdapterNetwork, dtype: torch.dtype | None) -> Tensors:
    """Return the tensors of an embedding file, on the CPU in `dtype` (None: unchanged), by the plans' names."""
    layers = [layer for layer in network.layers if isinstance(layer, EmbeddingRows)]
    return {layer.name: layer.masters[0].detach().to("cpu", dtype, copy=True) for layer in layers}
