"""Z-Image's transformer in the layout of diffusers: module names are the keys of its official shards.

Tongyi-MAI, 2025. Images are packed latents: each token is a 2x2 patch of 16 channels, channels last. Image and caption
pass a few blocks of their own, the refiners, then the same blocks together. Both are filled up to a multiple of 32
tokens with learned vectors, which attention sees.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.library.diffusion.attention import attention, padding_mask
from sd_scripts.library.diffusion.block_transformer import BlockTransformer, with_gradients
from sd_scripts.library.diffusion.dit_layers import EPS, PATCH, TIME_CHANNELS, Grid, Rope, heads_of, timestep_embedding
from sd_scripts.library.files.state_dicts import count
from sd_scripts.library.kernels.norm_rope import normed_and_rotated
from sd_scripts.networks.layers import project_together

FILLED = 32
"""Captions and images are filled up to a multiple of this many tokens."""
NORM_EPS = 1e-5
ROPE_BASE = 256.0
PATCHES = "2-1"
"""What diffusers calls the layers for patches of 2x2 latents of one frame."""


@dataclass(frozen=True, kw_only=True)
class ZImageParams:
    """Sizes of a transformer. The defaults are Z-Image."""

    channels: int = 64
    width: int = 3840
    heads: int = 30
    mlp_width: int = 10240
    text_width: int = 2560
    time_width: int = 256
    time_hidden: int = 1024
    blocks: int = 30
    refiners: int = 2

    @property
    def rope_widths(self) -> tuple[int, int, int]:
        """Rotary dimensions of a head for caption, row and column: 32, 48, 48 of 128."""
        head = self.width // self.heads
        return head // 4, head * 3 // 8, head * 3 // 8

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> ZImageParams:
        """Read the sizes from a checkpoint's shapes. Raises KeyError if a needed key is missing."""
        width, text_width = shapes["cap_embedder.1.weight"]
        return cls(
            channels=shapes[f"all_x_embedder.{PATCHES}.weight"][1],
            width=width,
            heads=width // shapes["layers.0.attention.norm_q.weight"][0],
            mlp_width=shapes["layers.0.feed_forward.w1.weight"][0],
            text_width=text_width,
            time_width=shapes["t_embedder.mlp.2.weight"][0],
            time_hidden=shapes["t_embedder.mlp.2.weight"][1],
            blocks=count(shapes, r"layers\.\d+\.attention\.to_q\.weight"),
            refiners=count(shapes, r"noise_refiner\.\d+\.attention\.to_q\.weight"),
        )


class RMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., W) -> the same dtype, computed in float32."""
        return (F.rms_norm(x.float(), x.shape[-1:], eps=NORM_EPS) * self.weight.float()).to(x.dtype)


class Modulation(nn.Sequential):
    """Computes scales and gates of a block from the vector of time."""

    def __init__(self, params: ZImageParams):
        super().__init__(nn.Linear(params.time_width, 4 * params.width))

    def forward(self, vec: Tensor) -> tuple[Tensor, ...]:
        """(B, 256) -> scale and gate of attention, scale and gate of the MLP, each (B, 1, W)."""
        scale1, gate1, scale2, gate2 = super().forward(vec)[:, None].chunk(4, dim=-1)
        return 1 + scale1, gate1.tanh(), 1 + scale2, gate2.tanh()


class TimestepEmbedder(nn.Module):
    def __init__(self, params: ZImageParams):
        super().__init__()
        hidden = params.time_hidden
        self.mlp = nn.Sequential(nn.Linear(TIME_CHANNELS, hidden), nn.SiLU(), nn.Linear(hidden, params.time_width))

    def forward(self, t: Tensor, dtype: torch.dtype) -> Tensor:
        return self.mlp(timestep_embedding(t).to(dtype))


class Attention(nn.Module):
    def __init__(self, params: ZImageParams):
        super().__init__()
        self.heads = params.heads
        width = params.width
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.norm_q, self.norm_k = (RMSNorm(width // params.heads) for _ in range(2))
        self.to_out = nn.ModuleList([nn.Linear(width, width, bias=False)])

    def forward(self, x: Tensor, rope: Rope, mask: Tensor | None) -> Tensor:
        q, k, v = heads_of(project_together((self.to_q, self.to_k, self.to_v), x), self.heads)
        q = normed_and_rotated([q], [self.norm_q.weight], rope, NORM_EPS)
        k = normed_and_rotated([k], [self.norm_k.weight], rope, NORM_EPS)
        return self.to_out[0](attention(q, k, v, mask))


class FeedForward(nn.Module):
    def __init__(self, width: int, mlp_width: int):
        super().__init__()
        self.w1 = nn.Linear(width, mlp_width, bias=False)
        self.w2 = nn.Linear(mlp_width, width, bias=False)
        self.w3 = nn.Linear(width, mlp_width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = project_together((self.w1, self.w3), x)
        return self.w2(F.silu(gate) * value)


class ZImageTransformerBlock(nn.Module):
    def __init__(self, params: ZImageParams, *, modulated: bool = True):
        super().__init__()
        self.attention = Attention(params)
        self.feed_forward = FeedForward(params.width, params.mlp_width)
        self.attention_norm1, self.attention_norm2 = RMSNorm(params.width), RMSNorm(params.width)
        self.ffn_norm1, self.ffn_norm2 = RMSNorm(params.width), RMSNorm(params.width)
        if modulated:
            self.adaLN_modulation = Modulation(params)

    def forward(self, x: Tensor, vec: Tensor | None, rope: Rope, mask: Tensor | None = None) -> Tensor:
        """x (B, S, W), vec (B, 256) or None for a context refiner, mask as padding_mask returns it -> x."""
        if vec is None:
            x = x + self.attention_norm2(self.attention(self.attention_norm1(x), rope, mask))
            return x + self.ffn_norm2(self.feed_forward(self.ffn_norm1(x)))
        scale1, gate1, scale2, gate2 = self.adaLN_modulation(vec)
        x = x + gate1 * self.attention_norm2(self.attention(self.attention_norm1(x) * scale1, rope, mask))
        return x + gate2 * self.ffn_norm2(self.feed_forward(self.ffn_norm1(x) * scale2))


class FinalLayer(nn.Module):
    def __init__(self, params: ZImageParams):
        super().__init__()
        self.linear = nn.Linear(params.width, params.channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(params.time_width, params.width))

    def forward(self, x: Tensor, vec: Tensor) -> Tensor:
        scale = 1 + self.adaLN_modulation(vec)[:, None]
        return self.linear(F.layer_norm(x, x.shape[-1:], eps=EPS) * scale)


class ZImageTransformer(BlockTransformer):
    def __init__(self, params: ZImageParams):
        super().__init__()
        self.params = params
        self.all_x_embedder = nn.ModuleDict({PATCHES: nn.Linear(params.channels, params.width)})
        self.all_final_layer = nn.ModuleDict({PATCHES: FinalLayer(params)})
        self.noise_refiner = nn.ModuleList(ZImageTransformerBlock(params) for _ in range(params.refiners))
        self.context_refiner = nn.ModuleList(
            ZImageTransformerBlock(params, modulated=False) for _ in range(params.refiners)
        )
        self.t_embedder = TimestepEmbedder(params)
        self.cap_embedder = nn.Sequential(RMSNorm(params.text_width), nn.Linear(params.text_width, params.width))
        self.x_pad_token = nn.Parameter(torch.empty(1, params.width))
        self.cap_pad_token = nn.Parameter(torch.empty(1, params.width))
        self.layers = nn.ModuleList(ZImageTransformerBlock(params) for _ in range(params.blocks))

    @property
    def first_layer(self) -> nn.Module:
        return self.all_x_embedder[PATCHES]

    @property
    def last_layer(self) -> FinalLayer:
        return cast(FinalLayer, self.all_final_layer[PATCHES])

    def forward(
        self, img: Tensor, txt: Tensor, timesteps: Tensor, grid: Grid, txt_mask: Tensor | None = None
    ) -> Tensor:
        """Predict the velocity, noise - image, of each token.

        img (B, N, 64) packed latents, N = rows * columns of the grid, txt (B, T, 2560), timesteps (B,) float32 in 0..1,
        txt_mask (B, T) bool, True where there is text, which padding follows; None: no caption is padded -> (B, N, 64).
        """
        dtype = self.dtype
        vec = self.t_embedder(1 - timesteps, dtype)  # 1 is the image here
        img, txt = with_gradients(self.first_layer(img.to(dtype)), self.cap_embedder(txt.to(dtype)))
        if txt_mask is not None:
            txt = torch.where(txt_mask[..., None], txt, self.cap_pad_token.to(dtype))
        img, txt = _filled_with(img, self.x_pad_token), _filled_with(txt, self.cap_pad_token)
        context_mask = mask = None
        if txt_mask is None:
            lengths = torch.full((1,), txt.shape[1], device=img.device)
        else:
            lengths = filled(txt_mask.sum(1))
            valid = torch.arange(txt.shape[1], device=img.device) < lengths[:, None]
            context_mask = padding_mask(valid, dtype)
            mask = padding_mask(F.pad(valid, (img.shape[1], 0), value=True), dtype)
        txt_rope, img_rope = rope_tables(self.params, lengths, txt.shape[1], grid)

        for block in self.noise_refiner:
            (img,) = self.run_block(block, (img,), vec, img_rope)
        for block in self.context_refiner:
            (txt,) = self.run_block(block, (txt,), None, txt_rope, context_mask)
        x = torch.cat((img, txt), dim=1)
        rope = tuple(torch.cat(parts, dim=1) for parts in zip(img_rope, txt_rope, strict=True))
        for block in self.layers:
            (x,) = self.run_block(block, (x,), vec, rope, mask)
        return -self.last_layer(x[:, : math.prod(grid)], vec)


Tokens = TypeVar("Tokens", int, Tensor)


def filled(tokens: Tokens) -> Tokens:
    """Return the number of tokens after filling: of a number, or of each of a tensor."""
    return -(-tokens // FILLED) * FILLED


def _filled_with(x: Tensor, token: Tensor) -> Tensor:
    """Append the learned token (1, W) to (B, S, W) until S is a multiple of 32."""
    missing = filled(x.shape[1]) - x.shape[1]
    return torch.cat((x, token.to(x.dtype).expand(len(x), missing, -1)), dim=1)


def rope_tables(params: ZImageParams, lengths: Tensor, txt_tokens: int, grid: Grid) -> tuple[Rope, Rope]:
    """Return the rotary tables of captions and images, (B, S, 1, D/2) each, for captions of these filled lengths (B,).

    The first coordinate of a caption counts its tokens from 1, the image's is the number after the last one; the
    tokens that fill an image up are at 0 on all axes.
    """
    device, count = lengths.device, len(lengths)
    txt = torch.zeros(count, txt_tokens, 3, dtype=torch.float64, device=device)
    txt[..., 0] = torch.arange(1, txt_tokens + 1, device=device)
    rows, columns = grid
    img = torch.zeros(count, filled(rows * columns), 3, dtype=torch.float64, device=device)
    seen = img[:, : rows * columns]
    seen[..., 0] = lengths[:, None] + 1
    seen[..., 1] = torch.arange(rows, device=device).repeat_interleave(columns)
    seen[..., 2] = torch.arange(columns, device=device).repeat(rows)
    return _rope(params, txt), _rope(params, img)


def _rope(params: ZImageParams, positions: Tensor) -> Rope:
    angles = torch.cat(
        [
            positions[..., axis, None]
            / ROPE_BASE ** (torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width)
            for axis, width in enumerate(params.rope_widths)
        ],
        dim=-1,
    )[:, :, None].float()  # (B, S, 1, D/2)
    return angles.cos(), angles.sin()


def pack(latents: Tensor) -> Tensor:
    """Pack (B, C, h, w) -> (B, h/2 · w/2, 4C), row by row, channels last in each token. h and w must be even."""
    patches = latents.unflatten(-1, (-1, PATCH)).unflatten(-3, (-1, PATCH))  # (B, C, h/2, 2, w/2, 2)
    return patches.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
