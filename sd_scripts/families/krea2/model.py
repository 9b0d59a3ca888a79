"""Krea 2's transformer in the layout of its checkpoints: module names are the file's keys.

Krea, 2026. Images are packed latents: each token is a 2x2 patch of 16 channels. A small transformer first fuses the
states of twelve layers of the text encoder; then one sequence of image and text passes through equal blocks, which
share their modulation but for a table of their own. Queries are grouped, attention's output is gated, and norms store
their scale minus one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.library.diffusion.attention import attention, padding_mask
from sd_scripts.library.diffusion.block_transformer import BlockTransformer, with_gradients
from sd_scripts.library.diffusion.dit_layers import Grid, Rope, TanhGELU, rope_of, timestep_embedding
from sd_scripts.library.files.state_dicts import count
from sd_scripts.library.kernels.norm_rope import normed_and_rotated
from sd_scripts.networks.layers import project_together

ROPE_BASE = 1_000
EPS = 1e-5
"""Of all norms."""


@dataclass(frozen=True, kw_only=True)
class Krea2Params:
    """Sizes of a transformer. The defaults are Krea 2, Raw and Turbo."""

    channels: int = 64
    width: int = 6144
    heads: int = 48
    key_heads: int = 12
    mlp_width: int = 16384
    blocks: int = 28
    time_channels: int = 256
    text_states: int = 12
    """States of the text encoder that are read for each token."""
    text_width: int = 2560
    text_heads: int = 20
    text_key_heads: int = 20
    text_mlp_width: int = 6912
    text_blocks: int = 2
    """Of each of the two kinds."""

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> Krea2Params:
        """Read the sizes from a checkpoint's shapes under Krea's keys. Raises KeyError if a needed key is missing."""
        width, channels = shapes["first.weight"]
        first, text = "blocks.0", "txtfusion.layerwise_blocks.0"
        text_width = shapes["txtmlp.1.weight"][1]
        head, text_head = (shapes[f"{block}.attn.qknorm.qnorm.scale"][0] for block in (first, text))
        return cls(
            channels=channels,
            width=width,
            heads=width // head,
            key_heads=shapes[f"{first}.attn.wk.weight"][0] // head,
            mlp_width=shapes[f"{first}.mlp.up.weight"][0],
            blocks=count(shapes, r"blocks\.\d+\.attn\.wq\.weight"),
            time_channels=shapes["tmlp.0.weight"][1],
            text_states=shapes["txtfusion.projector.weight"][1],
            text_width=text_width,
            text_heads=text_width // text_head,
            text_key_heads=shapes[f"{text}.attn.wk.weight"][0] // text_head,
            text_mlp_width=shapes[f"{text}.mlp.up.weight"][0],
            text_blocks=count(shapes, r"txtfusion\.layerwise_blocks\.\d+\.attn\.wq\.weight"),
        )


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class RMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(width))
        """Minus one."""

    @property
    def factor(self) -> Tensor:
        return self.scale.float() + 1

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (..., W) in float32; the result has the dtype of x."""
        return F.rms_norm(x.float(), x.shape[-1:], self.factor, EPS).to(x.dtype)


class QKNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.qnorm = RMSNorm(width)
        self.knorm = RMSNorm(width)


class Attention(nn.Module):
    """Self-attention in which groups of query heads share keys and values, and a sigmoid gates the output."""

    def __init__(self, width: int, heads: int, key_heads: int):
        super().__init__()
        self.heads, self.key_heads = heads, key_heads
        head_width = width // heads
        self.wq = linear(width, width)
        self.wk = linear(width, key_heads * head_width)
        self.wv = linear(width, key_heads * head_width)
        self.gate = linear(width, width)
        self.qknorm = QKNorm(head_width)
        self.wo = linear(width, width)

    def forward(self, x: Tensor, rope: Rope | None, mask: Tensor | None) -> Tensor:
        """x (B, S, W), rope of its tokens if they are rotated, mask as padding_mask returns it -> (B, S, W)."""
        q, k, v, gate = project_together((self.wq, self.wk, self.wv, self.gate), x)
        q = self._normed(q, self.heads, self.qknorm.qnorm, rope)  # (B, S, H, D)
        k = self._normed(k, self.key_heads, self.qknorm.knorm, rope)
        v = v.unflatten(-1, (self.key_heads, -1))
        if self.heads != self.key_heads:  # PyTorch's enable_gqa has neither cuDNN's kernel nor one that takes a mask
            k, v = (each.repeat_interleave(self.heads // self.key_heads, dim=2) for each in (k, v))
        return self.wo(attention(q, k, v, mask) * gate.sigmoid())

    @staticmethod
    def _normed(x: Tensor, heads: int, norm: RMSNorm, rope: Rope | None) -> Tensor:
        x = x.unflatten(-1, (heads, -1))
        return normed_and_rotated([x], [norm.factor], rope, EPS) if rope else norm(x)


class MLP(nn.Module):
    def __init__(self, width: int, mlp_width: int):
        super().__init__()
        self.gate = linear(width, mlp_width)
        self.up = linear(width, mlp_width)
        self.down = linear(mlp_width, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = project_together((self.gate, self.up), x)
        return self.down(F.silu(gate) * up)


class Table(nn.Module):
    """A block's own part of the modulation."""

    def __init__(self, *shape: int):
        super().__init__()
        self.lin = nn.Parameter(torch.zeros(shape))


class TextBlock(nn.Module):
    def __init__(self, params: Krea2Params):
        super().__init__()
        self.prenorm = RMSNorm(params.text_width)
        self.postnorm = RMSNorm(params.text_width)
        self.attn = Attention(params.text_width, params.text_heads, params.text_key_heads)
        self.mlp = MLP(params.text_width, params.text_mlp_width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.prenorm(x), None, mask)
        return x + self.mlp(self.postnorm(x))


class TextFusion(nn.Module):
    """Fuses the states of a token, then lets the tokens attend to each other."""

    def __init__(self, params: Krea2Params):
        super().__init__()
        self.layerwise_blocks = nn.ModuleList(TextBlock(params) for _ in range(params.text_blocks))
        self.projector = linear(params.text_states, 1)
        self.refiner_blocks = nn.ModuleList(TextBlock(params) for _ in range(params.text_blocks))


class Block(nn.Module):
    def __init__(self, params: Krea2Params):
        super().__init__()
        self.mod = Table(6 * params.width)
        self.prenorm = RMSNorm(params.width)
        self.postnorm = RMSNorm(params.width)
        self.attn = Attention(params.width, params.heads, params.key_heads)
        self.mlp = MLP(params.width, params.mlp_width)

    def forward(self, x: Tensor, mod: Tensor, rope: Rope, mask: Tensor | None = None) -> Tensor:
        """x (B, N + T, W) of image and text, mod (B, 1, 6W), mask as padding_mask returns it -> x."""
        scale1, shift1, gate1, scale2, shift2, gate2 = (mod + self.mod.lin).chunk(6, dim=-1)
        x = x + gate1 * self.attn((1 + scale1) * self.prenorm(x) + shift1, rope, mask)
        return x + gate2 * self.mlp((1 + scale2) * self.postnorm(x) + shift2)


class LastLayer(nn.Module):
    def __init__(self, params: Krea2Params):
        super().__init__()
        self.modulation = Table(2, params.width)
        self.norm = RMSNorm(params.width)
        self.linear = nn.Linear(params.width, params.channels)

    def forward(self, x: Tensor, vec: Tensor) -> Tensor:
        """x (B, N, W), vec (B, 1, W) -> (B, N, 64)."""
        scale, shift = (vec + self.modulation.lin).chunk(2, dim=1)
        return self.linear((1 + scale) * self.norm(x) + shift)


class Krea2Transformer(BlockTransformer):
    def __init__(self, params: Krea2Params):
        super().__init__()
        self.params = params
        width = params.width
        self.first = nn.Linear(params.channels, width)
        self.tmlp = nn.Sequential(nn.Linear(params.time_channels, width), TanhGELU(), nn.Linear(width, width))
        self.tproj = nn.Sequential(TanhGELU(), nn.Linear(width, 6 * width))
        self.txtfusion = TextFusion(params)
        self.txtmlp = nn.Sequential(
            RMSNorm(params.text_width), nn.Linear(params.text_width, width), TanhGELU(), nn.Linear(width, width)
        )
        self.blocks = nn.ModuleList(Block(params) for _ in range(params.blocks))
        self.last = LastLayer(params)

    @property
    def first_layer(self) -> nn.Module:
        return self.first

    def forward(
        self, img: Tensor, txt: Tensor, timesteps: Tensor, grid: Grid, txt_mask: Tensor | None = None
    ) -> Tensor:
        """Predict the velocity, noise - image, of each token of the image.

        img (B, N, 64) packed latents, txt (B, T, 12, 2560), timesteps (B,) float32 in 0..1, grid of the image, N = rows
        * columns, txt_mask (B, T) bool, True where there is text, which padding follows -> (B, N, 64).
        """
        dtype = self.dtype
        vec = self.tmlp(timestep_embedding(timesteps, self.params.time_channels).to(dtype))[:, None]
        mod = self.tproj(vec)
        # the order of image and text is free, as all text is at position 0; attention wants padding at the end
        tokens = torch.cat((self.first(img.to(dtype)), self._text_tokens(txt.to(dtype), txt_mask)), dim=1)
        (x,) = with_gradients(tokens)
        cos, sin = rope_table(self.params, grid, img.device)
        behind = (0, 0, 0, 0, 0, txt.shape[1])  # all of the text is at position 0
        rope = F.pad(cos, behind, value=1.0), F.pad(sin, behind)
        mask = None if txt_mask is None else padding_mask(F.pad(txt_mask, (img.shape[1], 0), value=True), dtype)

        for block in self.blocks:
            (x,) = self.run_block(block, (x,), mod, rope, mask)
        return self.last(x[:, : img.shape[1]], vec)

    def _text_tokens(self, txt: Tensor, txt_mask: Tensor | None) -> Tensor:
        """(B, T, 12, C), mask (B, T) -> (B, T, W)."""
        batch = len(txt)
        (x,) = with_gradients(txt.flatten(0, 1))  # attention within each token
        for block in self.txtfusion.layerwise_blocks:
            (x,) = self.run_block(block, (x,))
        x = self.txtfusion.projector(x.transpose(1, 2)).squeeze(-1).unflatten(0, (batch, -1))
        mask = None if txt_mask is None else padding_mask(txt_mask, txt.dtype)
        for block in self.txtfusion.refiner_blocks:
            (x,) = self.run_block(block, (x,), mask)
        return self.txtmlp(x)


def rope_widths(params: Krea2Params) -> tuple[int, int, int]:
    """Return the rotary dimensions of a head for the three axes of positions: 32, 48, 48 of 128."""
    side = params.head_width // 16 * 6
    return params.head_width - 2 * side, side, side


@cache  # recorded graphs read them, so none may be freed
def rope_table(params: Krea2Params, grid: Grid, device: torch.device) -> Rope:
    """Return the rotary table of an image row by row, cached for each size. The axes are a constant 0, row and
    column."""
    rows, columns = grid
    positions = torch.zeros(rows * columns, 3, dtype=torch.float64)
    positions[:, 1] = torch.arange(rows).repeat_interleave(columns)
    positions[:, 2] = torch.arange(columns).repeat(rows)
    return rope_of(positions, rope_widths(params), device, ROPE_BASE)
