"""FLUX.1's transformer in the layout of its checkpoints: module names are the file's keys.

Black Forest Labs, 2024. Images are packed latents: each token is a 2x2 patch of 16 channels. Double blocks keep
separate weights for text and image and let them attend to each other; single blocks treat both alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.families.common.blocks.original_layout import FinalLayer, QKNorm, SelfAttention, VectorEmbedder
from sd_scripts.families.common.blocks.streams import attend, attend_jointly, double_stream
from sd_scripts.library.diffusion.attention import padding_mask
from sd_scripts.library.diffusion.block_transformer import BlockTransformer, with_gradients
from sd_scripts.library.diffusion.dit_layers import (
    TIME_CHANNELS,
    Grid,
    Rope,
    TanhGELU,
    heads_of,
    modulate,
    rope_of,
    rope_widths,
    timestep_embedding,
)
from sd_scripts.library.files.state_dicts import count
from sd_scripts.networks.layers import project_split


@dataclass(frozen=True, kw_only=True)
class FluxParams:
    """Sizes of a transformer. The defaults are FLUX.1 dev; schnell has no guidance."""

    channels: int = 64
    width: int = 3072
    heads: int = 24
    mlp_width: int = 12288
    text_width: int = 4096
    pooled_width: int = 768
    double_blocks: int = 19
    single_blocks: int = 38
    guidance: bool = True

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> FluxParams:
        """Read the sizes from a checkpoint's shapes under BFL's keys. Raises KeyError if a needed key is missing."""
        return cls(
            **block_sizes(shapes),
            pooled_width=shapes["vector_in.in_layer.weight"][1],
            guidance="guidance_in.in_layer.weight" in shapes,
        )


def block_sizes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return the fields of FluxParams that a checkpoint's blocks and their inputs determine."""
    width, channels = shapes["img_in.weight"]
    return {
        "channels": channels,
        "width": width,
        "heads": width // shapes["double_blocks.0.img_attn.norm.query_norm.scale"][0],
        "mlp_width": shapes["double_blocks.0.img_mlp.0.weight"][0],
        "text_width": shapes["txt_in.weight"][1],
        "double_blocks": count(shapes, r"double_blocks\.\d+\.img_attn\.qkv\.weight"),
        "single_blocks": count(shapes, r"single_blocks\.\d+\.linear1\.weight"),
    }


class Modulation(nn.Module):
    """Computes shift, scale and gate from the vector of time, guidance and text."""

    def __init__(self, width: int, count: int):
        super().__init__()
        self.count = count
        self.lin = nn.Linear(width, 3 * count * width)

    def forward(self, vec: Tensor) -> tuple[Tensor, ...]:
        """(B, W) -> shift, scale, gate, each (B, 1, W); twice for a double block."""
        return self.lin(F.silu(vec))[:, None].chunk(3 * self.count, dim=-1)


def mlp(shape: FluxParams) -> nn.Sequential:
    return nn.Sequential(nn.Linear(shape.width, shape.mlp_width), TanhGELU(), nn.Linear(shape.mlp_width, shape.width))


class DoubleBlock(nn.Module):
    def __init__(self, shape: FluxParams, img_mod: nn.Module, txt_mod: nn.Module):
        """The modulations make of `vec` shift, scale and gate, each (B, 1, W), for attention and again for the MLP."""
        super().__init__()
        self.img_mod = img_mod
        self.img_attn = SelfAttention(shape.width, shape.heads)
        self.img_mlp = mlp(shape)
        self.txt_mod = txt_mod
        self.txt_attn = SelfAttention(shape.width, shape.heads)
        self.txt_mlp = mlp(shape)

    def forward(
        self, img: Tensor, txt: Tensor, vec: Tensor, rope: Rope, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """img (B, N, W), txt (B, T, W), vec as the modulations take it, mask of N + T tokens as padding_mask returns it
        -> img, txt."""
        modulations = self.img_mod(vec), self.txt_mod(vec)
        return double_stream(img, txt, modulations, self.attend, (self.img_mlp, self.txt_mlp), rope, mask)

    def attend(self, img: Tensor, txt: Tensor, rope: Rope, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the outputs of attention over both: img (B, N, W) and txt (B, T, W)."""
        norms = self.img_attn.norm, self.txt_attn.norm
        img_out, txt_out = attend_jointly(
            self.img_attn.qkv_heads(img),
            self.txt_attn.qkv_heads(txt),
            [norm.query_norm.scale for norm in norms],
            [norm.key_norm.scale for norm in norms],
            rope,
            mask,
        )
        return self.img_attn.proj(img_out), self.txt_attn.proj(txt_out)


class SingleBlock(nn.Module):
    """Parallel attention and MLP with a fused input and a fused output projection."""

    def __init__(self, shape: FluxParams, modulation: nn.Module):
        super().__init__()
        self.heads = shape.heads
        self.widths = (*(shape.width,) * 3, shape.mlp_width)
        self.modulation = modulation
        self.linear1 = nn.Linear(shape.width, sum(self.widths))
        self.norm = QKNorm(shape.head_width)
        self.gelu = TanhGELU()
        self.linear2 = nn.Linear(shape.width + shape.mlp_width, shape.width)

    def forward(self, x: Tensor, vec: Tensor, rope: Rope, mask: Tensor | None = None) -> Tensor:
        """x (B, S, W) of image and text, vec as the modulation takes it, mask as padding_mask returns it -> x."""
        shift, scale, gate = self.modulation(vec)
        *qkv, hidden = project_split(self.linear1, modulate(x, shift, scale), self.widths)
        norm = self.norm
        out = attend(heads_of(qkv, self.heads), norm.query_norm.scale, norm.key_norm.scale, rope, mask)
        return x + gate * self.linear2(torch.cat((out, self.gelu(hidden)), dim=-1))


class FluxTransformer(BlockTransformer):
    def __init__(self, shape: FluxParams):
        super().__init__()
        self.shape = shape
        self.img_in = nn.Linear(shape.channels, shape.width)
        self.add_conditioning()
        self.txt_in = nn.Linear(shape.text_width, shape.width)
        self.double_blocks = nn.ModuleList(self.double_block() for _ in range(shape.double_blocks))
        self.single_blocks = nn.ModuleList(self.single_block() for _ in range(shape.single_blocks))
        self.final_layer = FinalLayer(shape.width, shape.channels, self.last_modulation())

    def add_conditioning(self) -> None:
        """Add the modules that `conditioning` calls."""
        shape = self.shape
        self.time_in = VectorEmbedder(TIME_CHANNELS, shape.width)
        self.vector_in = VectorEmbedder(shape.pooled_width, shape.width)
        if shape.guidance:
            self.guidance_in = VectorEmbedder(TIME_CHANNELS, shape.width)

    def double_block(self) -> DoubleBlock:
        width = self.shape.width
        return DoubleBlock(self.shape, img_mod=Modulation(width, 2), txt_mod=Modulation(width, 2))

    def single_block(self) -> SingleBlock:
        return SingleBlock(self.shape, Modulation(self.shape.width, 1))

    def last_modulation(self) -> nn.Module:
        return nn.Sequential(nn.SiLU(), nn.Linear(self.shape.width, 2 * self.shape.width))

    def conditioning(
        self, pooled: Tensor | None, timesteps: Tensor, guidance: Tensor | None
    ) -> tuple[Sequence[Tensor], Sequence[Tensor], Tensor]:
        """Return the vectors from which each double block, each single block and the last layer compute their
        modulation: one vector (B, W) for all."""
        assert pooled is not None
        dtype = self.dtype
        vec = self.time_in(timestep_embedding(timesteps).to(dtype)) + self.vector_in(pooled.to(dtype))
        if self.shape.guidance:
            assert guidance is not None, "FLUX.1 dev needs a guidance value"
            vec = vec + self.guidance_in(timestep_embedding(guidance).to(dtype))
        return [vec] * self.shape.double_blocks, [vec] * self.shape.single_blocks, vec

    def forward(
        self,
        img: Tensor,
        txt: Tensor,
        pooled: Tensor | None,
        timesteps: Tensor,
        guidance: Tensor | None,
        grid: Grid,
        txt_mask: Tensor | None = None,
        control_grids: tuple[Grid, ...] = (),
    ) -> Tensor:
        """Predict the velocity, noise - image, of each token of the noisy image.

        img (B, N, 64) packed latents of the noisy image and then of its control images, txt (B, T, 4096), pooled
        (B, 768), timesteps (B,) float32 in 0..1, guidance (B,) or None for schnell, grid of the noisy image and
        control_grids of the others, N = sum of rows * columns, txt_mask (B, T) bool, True where there is text
        -> (B, M, 64), M tokens of the noisy image.
        """
        dtype = self.dtype
        of_doubles, of_singles, of_last = self.conditioning(pooled, timesteps, guidance)
        img, txt = with_gradients(self.img_in(img.to(dtype)), self.txt_in(txt.to(dtype)))
        rope = rope_table(self.shape, (grid, *control_grids), txt.shape[1], img.device)
        # the text comes last, so that its padding is at the end, where attention is fast without a mask
        mask = None if txt_mask is None else padding_mask(F.pad(txt_mask.bool(), (img.shape[1], 0), value=True), dtype)

        for block, vec in zip(self.double_blocks, of_doubles, strict=True):
            img, txt = self.run_block(block, (img, txt), vec, rope, mask)
        x = torch.cat((img, txt), dim=1)
        for block, vec in zip(self.single_blocks, of_singles, strict=True):
            (x,) = self.run_block(block, (x,), vec, rope, mask)
        return self.final_layer(x[:, : math.prod(grid)], of_last)


@cache  # recorded graphs read them, so none may be freed
def rope_table(shape: FluxParams, grids: tuple[Grid, ...], txt_tokens: int, device: torch.device) -> Rope:
    """Return the rotary table of each image row by row, then of the text, at position 0; cached for each size.

    The first coordinate is the number of the image: 0 for the noisy one, 1, 2, ... for its control images, whose rows
    and columns count from 0 again.
    """
    parts = []
    for number, (rows, columns) in enumerate(grids):
        row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        parts.append(torch.stack((torch.full_like(row, number), row, column), dim=-1).flatten(0, 1))
    parts.append(torch.zeros(txt_tokens, 3))
    return rope_of(torch.cat(parts).double(), rope_widths(shape.head_width), device)
