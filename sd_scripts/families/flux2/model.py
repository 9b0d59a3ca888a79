"""FLUX.2's transformer in the layout of its checkpoints: module names are the file's keys.

Black Forest Labs, 2025. As in FLUX.1, double blocks keep separate weights for text and images, and single blocks treat
both alike; here all double blocks share one modulation for each stream and all single blocks another, no layer has a
bias, MLPs are gated, and positions have four axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.families.common.blocks.original_layout import FinalLayer, QKNorm, SelfAttention, VectorEmbedder
from sd_scripts.families.common.blocks.streams import attend, attend_jointly
from sd_scripts.library.diffusion.block_transformer import BlockTransformer, with_gradients
from sd_scripts.library.diffusion.dit_layers import (
    TIME_CHANNELS,
    Grid,
    Rope,
    heads_of,
    modulate,
    rope_of,
    timestep_embedding,
)
from sd_scripts.library.files.state_dicts import count
from sd_scripts.networks.layers import project_split

ROPE_BASE = 2_000
REFERENCE_STEP = 10
"""Distance of images on the first axis of positions: 0 is the noisy image, 10, 20, ... its control images."""


@dataclass(frozen=True, kw_only=True)
class Flux2Params:
    """Sizes of a transformer. The defaults are klein 4B."""

    channels: int = 128
    width: int = 3072
    heads: int = 24
    mlp_width: int = 9216
    text_width: int = 7680
    double_blocks: int = 5
    single_blocks: int = 20

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> Flux2Params:
        """Read the sizes from a checkpoint's shapes under BFL's keys. Raises KeyError if a needed key is missing."""
        width, channels = shapes["img_in.weight"]
        return cls(
            channels=channels,
            width=width,
            heads=width // shapes["double_blocks.0.img_attn.norm.query_norm.scale"][0],
            mlp_width=shapes["double_blocks.0.img_mlp.2.weight"][1],
            text_width=shapes["txt_in.weight"][1],
            double_blocks=count(shapes, r"double_blocks\.\d+\.img_attn\.qkv\.weight"),
            single_blocks=count(shapes, r"single_blocks\.\d+\.linear1\.weight"),
        )


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class GatedSiLU(nn.Module):
    """(..., 2M) -> (..., M): the first half gates the second."""

    def forward(self, x: Tensor) -> Tensor:
        gate, value = x.chunk(2, dim=-1)
        return F.silu(gate) * value


class Modulation(nn.Module):
    """Computes shift, scale and gate of all blocks of a kind from the vector of time."""

    def __init__(self, width: int, count: int):
        super().__init__()
        self.lin = linear(width, 3 * count * width)

    def forward(self, vec: Tensor) -> Tensor:
        """(B, W) -> (B, 1, 3 · count · W)."""
        return self.lin(F.silu(vec))[:, None]


def mlp(params: Flux2Params) -> nn.Sequential:
    return nn.Sequential(
        linear(params.width, 2 * params.mlp_width), GatedSiLU(), linear(params.mlp_width, params.width)
    )


class DoubleBlock(nn.Module):
    def __init__(self, params: Flux2Params):
        super().__init__()
        self.img_attn = SelfAttention(params.width, params.heads, bias=False)
        self.img_mlp = mlp(params)
        self.txt_attn = SelfAttention(params.width, params.heads, bias=False)
        self.txt_mlp = mlp(params)

    def forward(self, img: Tensor, txt: Tensor, img_mod: Tensor, txt_mod: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """img (B, N, W), txt (B, T, W), modulations (B, 1, 6W) -> img, txt."""
        img_shift1, img_scale1, img_gate1, img_shift2, img_scale2, img_gate2 = img_mod.chunk(6, dim=-1)
        txt_shift1, txt_scale1, txt_gate1, txt_shift2, txt_scale2, txt_gate2 = txt_mod.chunk(6, dim=-1)

        img_qkv = self.img_attn.qkv_heads(modulate(img, img_shift1, img_scale1))
        txt_qkv = self.txt_attn.qkv_heads(modulate(txt, txt_shift1, txt_scale1))
        norms = self.txt_attn.norm, self.img_attn.norm
        query_norms, key_norms = [norm.query_norm.scale for norm in norms], [norm.key_norm.scale for norm in norms]
        txt_out, img_out = attend_jointly(txt_qkv, img_qkv, query_norms, key_norms, rope, None)

        img = img + img_gate1 * self.img_attn.proj(img_out)
        img = img + img_gate2 * self.img_mlp(modulate(img, img_shift2, img_scale2))
        txt = txt + txt_gate1 * self.txt_attn.proj(txt_out)
        txt = txt + txt_gate2 * self.txt_mlp(modulate(txt, txt_shift2, txt_scale2))
        return img, txt


class SingleBlock(nn.Module):
    """Parallel attention and gated MLP with a fused input and a fused output projection."""

    def __init__(self, params: Flux2Params):
        super().__init__()
        self.heads = params.heads
        self.widths = (*(params.width,) * 3, 2 * params.mlp_width)
        self.linear1 = linear(params.width, sum(self.widths))
        self.norm = QKNorm(params.head_width)
        self.gate = GatedSiLU()
        self.linear2 = linear(params.width + params.mlp_width, params.width)

    def forward(self, x: Tensor, mod: Tensor, rope: Rope) -> Tensor:
        """x (B, S, W) of text and images, modulation (B, 1, 3W) -> x."""
        shift, scale, gate = mod.chunk(3, dim=-1)
        *qkv, hidden = project_split(self.linear1, modulate(x, shift, scale), self.widths)
        out = attend(heads_of(qkv, self.heads), self.norm.query_norm.scale, self.norm.key_norm.scale, rope)
        return x + gate * self.linear2(torch.cat((out, self.gate(hidden)), dim=-1))


class Flux2Transformer(BlockTransformer):
    def __init__(self, params: Flux2Params):
        super().__init__()
        self.params = params
        self.img_in = linear(params.channels, params.width)
        self.time_in = VectorEmbedder(TIME_CHANNELS, params.width, bias=False)
        self.txt_in = linear(params.text_width, params.width)
        self.double_stream_modulation_img = Modulation(params.width, 2)
        self.double_stream_modulation_txt = Modulation(params.width, 2)
        self.single_stream_modulation = Modulation(params.width, 1)
        self.double_blocks = nn.ModuleList(DoubleBlock(params) for _ in range(params.double_blocks))
        self.single_blocks = nn.ModuleList(SingleBlock(params) for _ in range(params.single_blocks))
        modulation = nn.Sequential(nn.SiLU(), linear(params.width, 2 * params.width))
        self.final_layer = FinalLayer(params.width, params.channels, modulation, bias=False)

    def forward(
        self, img: Tensor, txt: Tensor, timesteps: Tensor, grid: Grid, control_grids: tuple[Grid, ...] = ()
    ) -> Tensor:
        """Predict the velocity, noise - image, of each token of the noisy image.

        img (B, N, 128) latents of the noisy image and then of its control images, txt (B, T, 7680), timesteps (B,)
        float32 in 0..1, grid of the noisy image and control_grids of the others, N = sum of rows * columns
        -> (B, M, 128), M tokens of the noisy image.
        """
        dtype = self.dtype
        vec = self.time_in(timestep_embedding(timesteps).to(dtype))
        img_mod, txt_mod = self.double_stream_modulation_img(vec), self.double_stream_modulation_txt(vec)
        mod = self.single_stream_modulation(vec)
        img, txt = with_gradients(self.img_in(img.to(dtype)), self.txt_in(txt.to(dtype)))
        rope = rope_table(self.params, txt.shape[1], (grid, *control_grids), img.device)

        for block in self.double_blocks:
            img, txt = self.run_block(block, (img, txt), img_mod, txt_mod, rope)
        x = torch.cat((txt, img), dim=1)
        for block in self.single_blocks:
            (x,) = self.run_block(block, (x,), mod, rope)
        start = txt.shape[1]
        return self.final_layer(x[:, start : start + math.prod(grid)], vec)


@cache  # recorded graphs read them, so none may be freed
def rope_table(params: Flux2Params, txt_tokens: int, grids: tuple[Grid, ...], device: torch.device) -> Rope:
    """Return the rotary table of the text and then of each image row by row; cached for each size.

    The axes are the number of the image in steps of 10, row, column, and the place in the text.
    """
    text = torch.zeros(txt_tokens, 4)
    text[:, 3] = torch.arange(txt_tokens)
    parts = [text]
    for number, (rows, columns) in enumerate(grids):
        row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        image = torch.full_like(row, REFERENCE_STEP * number)
        parts.append(torch.stack((image, row, column, torch.zeros_like(row)), dim=-1).flatten(0, 1))
    return rope_of(torch.cat(parts).double(), (params.head_width // 4,) * 4, device, ROPE_BASE)
