"""Chroma's transformer in the layout of its checkpoints: FLUX.1's blocks without their modulation layers.

lodestones, 2025. One network, the approximator, computes every shift, scale and gate of all blocks from the timestep
and the number of the vector that it is asked for. It was distilled from FLUX.1's layers and stays frozen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.families.common.blocks.original_layout import VectorEmbedder
from sd_scripts.families.flux.model import DoubleBlock, FluxParams, FluxTransformer, SingleBlock, block_sizes
from sd_scripts.library.diffusion.dit_layers import EPS, timestep_embedding
from sd_scripts.library.files.state_dicts import count

DOUBLE, SINGLE, LAST = 6, 3, 2
"""Vectors of a stream of a double block, of a single block, and of the last layer."""


@dataclass(frozen=True, kw_only=True)
class ChromaParams(FluxParams):
    """Sizes of a transformer. The defaults are Chroma1."""

    guidance: bool = False
    approximator_channels: int = 64
    approximator_width: int = 5120
    approximator_layers: int = 5

    @property
    def vectors(self) -> int:
        return SINGLE * self.single_blocks + 2 * DOUBLE * self.double_blocks + LAST

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> ChromaParams:
        """Read the sizes from a checkpoint's shapes under its own keys. Raises KeyError if a needed key is missing."""
        width, channels = shapes["distilled_guidance_layer.in_proj.weight"]
        return cls(
            **block_sizes(shapes),
            approximator_channels=channels,
            approximator_width=width,
            approximator_layers=count(shapes, r"distilled_guidance_layer\.layers\.\d+\.in_layer\.weight"),
        )


class ScaledRMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], eps=EPS).to(x.dtype) * self.scale


class Approximator(nn.Module):
    def __init__(self, shape: ChromaParams):
        super().__init__()
        width, layers = shape.approximator_width, range(shape.approximator_layers)
        self.in_proj = nn.Linear(shape.approximator_channels, width)
        self.layers = nn.ModuleList(VectorEmbedder(width, width) for _ in layers)
        self.norms = nn.ModuleList(ScaledRMSNorm(width) for _ in layers)
        self.out_proj = nn.Linear(width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.in_proj(x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x))
        return self.out_proj(x)


class ModulationRows(nn.Module):
    """Takes shift, scale and gate from the vectors of a block."""

    def __init__(self, start: int, count: int):
        super().__init__()
        self.start, self.count = start, count

    def forward(self, vectors: Tensor) -> tuple[Tensor, ...]:
        """(B, R, W) -> each (B, 1, W); the first of them is the row `start`."""
        return vectors[:, self.start : self.start + self.count].split(1, dim=1)


class ChromaTransformer(FluxTransformer):
    shape: ChromaParams

    def add_conditioning(self) -> None:
        self.distilled_guidance_layer = Approximator(self.shape)

    def double_block(self) -> DoubleBlock:
        return DoubleBlock(self.shape, ModulationRows(0, DOUBLE), ModulationRows(DOUBLE, DOUBLE))

    def single_block(self) -> SingleBlock:
        return SingleBlock(self.shape, ModulationRows(0, SINGLE))

    def last_modulation(self) -> nn.Module:
        return nn.Identity()

    @torch.no_grad()
    def conditioning(
        self, pooled: Tensor | None, timesteps: Tensor, guidance: Tensor | None
    ) -> tuple[Sequence[Tensor], Sequence[Tensor], Tensor]:
        """Return the vectors of each double block (B, 12, W), image before text, of each single block (B, 3, W), and of
        the last layer (B, 2W). There is neither a pooled caption nor guidance."""
        doubles, singles = self.shape.double_blocks, self.shape.single_blocks
        vectors = self.distilled_guidance_layer(self._approximator_inputs(timesteps).to(self.dtype))
        of_singles, of_images, of_texts, last = vectors.split(
            (SINGLE * singles, DOUBLE * doubles, DOUBLE * doubles, LAST), dim=1
        )
        of_doubles = [each.unflatten(1, (doubles, DOUBLE)) for each in (of_images, of_texts)]
        return (
            torch.cat(of_doubles, dim=2).unbind(1),
            of_singles.unflatten(1, (singles, SINGLE)).unbind(1),
            last.flatten(1),
        )

    def _approximator_inputs(self, timesteps: Tensor) -> Tensor:
        """Return the embeddings of timestep, guidance, which is 0, and the number of the vector, (B, vectors, 64)."""
        channels, vectors = self.shape.approximator_channels, self.shape.vectors
        both = torch.stack((timesteps.float(), torch.zeros_like(timesteps, dtype=torch.float32)), dim=1)
        of_image = timestep_embedding(both.flatten(), channels // 4).view(len(timesteps), 1, -1)
        numbers = timestep_embedding(torch.arange(vectors, device=timesteps.device), channels // 2)
        return torch.cat(
            (of_image.expand(-1, vectors, -1), numbers.expand(len(timesteps), -1, -1)),
            dim=-1,
        )
