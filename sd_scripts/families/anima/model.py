"""Anima's transformer in the layout of its checkpoints, Cosmos-Predict2 2B: module names are the file's keys.

NVIDIA, 2025; CircleStone Labs, 2026. Blocks attend to the image's tokens, then to 512 rows of text, then apply an MLP.
Each part has a modulation through a narrow layer, to which all of them add one vector of the timestep. No layer has a
bias. Text comes from an adapter in the same file (adapter.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.families.anima.adapter import PREFIX, AdapterParams, Attention, LLMAdapter, linear
from sd_scripts.families.anima.card.options import LONGEST
from sd_scripts.library.diffusion.block_transformer import BlockTransformer, with_gradients
from sd_scripts.library.diffusion.dit_layers import (
    EPS,
    PATCH,
    ROPE_BASE,
    Grid,
    Rope,
    grid_of,
    modulate,
    pack,
    timestep_embedding,
    unpack_channels_last,
)
from sd_scripts.library.files.state_dicts import count


@dataclass(frozen=True, kw_only=True)
class AnimaParams:
    """Sizes of a transformer. The defaults are Anima."""

    channels: int = 16
    width: int = 2048
    heads: int = 16
    mlp_width: int = 8192
    modulation_width: int = 256
    text_width: int = 1024
    blocks: int = 28
    adapter: AdapterParams | None = field(default_factory=AdapterParams)
    """None: it is in a file of its own."""

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> AnimaParams:
        """Read the sizes from a checkpoint's shapes. Raises KeyError if a needed key is missing."""
        width, inputs = shapes["x_embedder.proj.1.weight"]
        adapter = {key.removeprefix(PREFIX): shape for key, shape in shapes.items() if key.startswith(PREFIX)}
        return cls(
            channels=inputs // PATCH**2 - 1,
            width=width,
            heads=width // shapes["blocks.0.self_attn.q_norm.weight"][0],
            mlp_width=shapes["blocks.0.mlp.layer1.weight"][0],
            modulation_width=shapes["blocks.0.adaln_modulation_mlp.1.weight"][0],
            text_width=shapes["blocks.0.cross_attn.k_proj.weight"][1],
            blocks=count(shapes, r"blocks\.\d+\.mlp\.layer1\.weight"),
            adapter=AdapterParams.of(adapter) if adapter else None,
        )


class PatchEmbed(nn.Module):
    def __init__(self, params: AnimaParams):
        super().__init__()
        cells = PATCH**2 * (params.channels + 1)
        self.proj = nn.Sequential(nn.Identity(), linear(cells, params.width))  # in Cosmos the first one packs

    def forward(self, latents: Tensor) -> Tensor:
        """Latents (B, C, h, w) -> tokens (B, N, W). A further channel of zeros stands for Cosmos' padding mask."""
        return self.proj(pack(F.pad(latents, (0, 0, 0, 0, 0, 1))))


class TimestepEmbedding(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.linear_1 = linear(width, width)
        self.linear_2 = linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.silu(self.linear_1(x)))


class Modulation(nn.Sequential):
    """Computes shift, scale and, in blocks, gate from the normalised embedding of the timestep."""

    def __init__(self, params: AnimaParams, parts: int = 3):
        narrow = params.modulation_width
        super().__init__(nn.SiLU(), linear(params.width, narrow), linear(narrow, parts * params.width))
        self.parts = parts

    def forward(self, time: Tensor, shared: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """time (B, W), shared (B, 3W), which all modulations add -> `parts` tensors (B, 1, W)."""
        own = super().forward(time)
        return (own + shared[:, : own.shape[-1]])[:, None].chunk(self.parts, dim=-1)


class MLP(nn.Module):
    def __init__(self, params: AnimaParams):
        super().__init__()
        self.layer1 = linear(params.width, params.mlp_width)
        self.layer2 = linear(params.mlp_width, params.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer2(F.gelu(self.layer1(x)))


class AnimaBlock(nn.Module):
    def __init__(self, params: AnimaParams):
        super().__init__()
        self.adaln_modulation_self_attn = Modulation(params)
        self.self_attn = Attention(params.width, params.heads, params.width, "output_proj")
        self.adaln_modulation_cross_attn = Modulation(params)
        self.cross_attn = Attention(params.width, params.heads, params.text_width, "output_proj")
        self.adaln_modulation_mlp = Modulation(params)
        self.mlp = MLP(params)

    def forward(self, x: Tensor, text: Tensor, time: Tensor, shared: Tensor, rope: Rope) -> Tensor:
        """x (B, N, W), text (B, T, C), time (B, W), shared (B, 3W) -> x."""
        shift, scale, gate = self.adaln_modulation_self_attn(time, shared)
        x = x + gate * self.self_attn(modulate(x, shift, scale), None, (rope, rope))
        shift, scale, gate = self.adaln_modulation_cross_attn(time, shared)
        x = x + gate * self.cross_attn(modulate(x, shift, scale), text)
        shift, scale, gate = self.adaln_modulation_mlp(time, shared)
        return x + gate * self.mlp(modulate(x, shift, scale))


class FinalLayer(nn.Module):
    def __init__(self, params: AnimaParams):
        super().__init__()
        self.linear = linear(params.width, PATCH**2 * params.channels)
        self.adaln_modulation = Modulation(params, parts=2)

    def forward(self, x: Tensor, time: Tensor, shared: Tensor) -> Tensor:
        shift, scale = self.adaln_modulation(time, shared)
        return self.linear(modulate(x, shift, scale))


class AnimaTransformer(BlockTransformer):
    def __init__(self, params: AnimaParams):
        super().__init__()
        self.params = params
        self.x_embedder = PatchEmbed(params)
        self.t_embedder = nn.Sequential(nn.Identity(), TimestepEmbedding(params.width))  # the first one is the sinusoid
        self.t_embedding_norm = nn.RMSNorm(params.width, eps=EPS)
        self.blocks = nn.ModuleList(AnimaBlock(params) for _ in range(params.blocks))
        self.final_layer = FinalLayer(params)
        if params.adapter:
            self.llm_adapter = LLMAdapter(params.adapter)

    @property
    def first_layer(self) -> nn.Module:
        return self.x_embedder.proj[1]

    def forward(self, latents: Tensor, timesteps: Tensor, text: Mapping[str, Tensor] | Tensor) -> Tensor:
        """Predict the velocity, noise - image.

        latents (B, 16, h, w), timesteps (B,) float32 in 0..1, not in thousandths, text as encode_text returns it, or as
        the adapter does (B, T, 1024) -> (B, 16, h, w).
        """
        dtype, grid = self.dtype, grid_of(latents)
        rows = text if isinstance(text, Tensor) else self._text_rows(**text)
        sinusoid = timestep_embedding(timesteps / 1000, self.params.width).to(dtype)
        time, shared = self.t_embedding_norm(sinusoid), self.t_embedder(sinusoid)
        (x,) = with_gradients(self.x_embedder(latents.to(dtype)))
        rope = rope_table(self.params.head_width, grid, x.device)
        for block in self.blocks:
            (x,) = self.run_block(block, (x,), rows, time, shared, rope)
        return unpack_channels_last(self.final_layer(x, time, shared), grid)

    def _text_rows(self, qwen3: Tensor, qwen3_mask: Tensor, t5_ids: Tensor, t5_mask: Tensor) -> Tensor:
        """Return the text that blocks attend to, (B, 512, 1024). Rows after the caption are 0, and not masked."""
        rows = self.llm_adapter(qwen3.to(self.dtype), qwen3_mask, t5_ids, t5_mask)
        return F.pad(rows, (0, 0, 0, max(LONGEST - rows.shape[1], 0)))


@cache  # recorded graphs read them, so none may be freed
def rope_table(head_width: int, grid: Grid, device: torch.device) -> Rope:
    """Return the rotary table of an image row by row. Its frame, 0, has 44 of 128 dimensions of a head, row and column
    have 42 each."""
    side = head_width // 6 * 2
    base = ROPE_BASE * 4 ** (side / (side - 2))  # for larger images than Cosmos was trained with
    rates = base ** -(torch.arange(0, side, 2, dtype=torch.float64) / side)
    rows, columns = (torch.arange(size, dtype=torch.float64)[:, None] * rates for size in grid)
    frame = torch.zeros(math.prod(grid), head_width // 2 - side, dtype=torch.float64)
    angles = torch.cat((frame, rows.repeat_interleave(grid[1], 0), columns.repeat(grid[0], 1)), dim=-1)[None, :, None]
    return angles.cos().float().to(device), angles.sin().float().to(device)
