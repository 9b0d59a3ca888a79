"""Wan's transformer in the official layout of its checkpoints: module names are the files' keys.

Wan team, 2025. A token is a 2x2 patch of one latent frame. Every block has self-attention of the clip's tokens, then
cross-attention to the text, and in some models to the features of an image. A learned table of shifts, scales and gates
is all that a block adds to the timestep's. Modulation and norms compute in float32.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.library.diffusion.attention import attention
from sd_scripts.library.diffusion.block_transformer import BlockTransformer, with_gradients
from sd_scripts.library.diffusion.dit_layers import (
    EPS,
    TIME_CHANNELS,
    Grid3d,
    Rope,
    TanhGELU,
    apply_rope,
    clip_positions,
    grid3d_of,
    heads_of,
    pack_clip,
    rope_of,
    timestep_embedding,
)
from sd_scripts.library.files.state_dicts import count
from sd_scripts.networks.layers import project_together

HEAD_WIDTH = 128
"""The same in every Wan model; shapes do not determine it."""
PATCH = (1, 2, 2)
"""Frames, rows and columns of latents in a token."""
PATCH_VALUES = 4
IMAGE_WIDTH = 1280
"""Width of the features of CLIP's image encoder."""


@dataclass(frozen=True, kw_only=True)
class WanParams:
    """Sizes of a transformer. The defaults are Wan 2.1 T2V 14B."""

    width: int = 5120
    mlp_width: int = 13824
    heads: int = 40
    blocks: int = 40
    in_channels: int = 16
    """The noisy latents' and those of what conditions them: mask and image, or control clip and image."""
    channels: int = 16
    """Channels of the VAE's latents."""
    text_width: int = 4096
    image_width: int | None = None
    """Width of the image features that cross-attention reads too; None: there are none."""
    image_tokens: int | None = None
    """Number of image features, where they have learned positions."""

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> WanParams:
        """Read the sizes from a checkpoint's shapes. Raises KeyError if a needed key is missing."""
        width, in_channels = shapes["patch_embedding.weight"][:2]
        return cls(
            width=width,
            mlp_width=shapes["blocks.0.ffn.0.weight"][0],
            heads=max(1, width // HEAD_WIDTH),
            blocks=count(shapes, r"blocks\.\d+\.modulation"),
            in_channels=in_channels,
            channels=shapes["head.head.weight"][0] // PATCH_VALUES,
            text_width=shapes["text_embedding.0.weight"][1],
            image_width=shapes.get("img_emb.proj.0.weight", (None,))[0],
            image_tokens=shapes.get("img_emb.emb_pos", (0, None))[1],
        )


class RMSNorm(nn.Module):
    """Normalises over the whole width, before it is split into heads."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return (F.rms_norm(x.float(), x.shape[-1:], eps=EPS) * self.weight.float()).to(x.dtype)


class LayerNorm(nn.LayerNorm):
    """Layer norm in float32."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.float(), self.bias.float()
        return F.layer_norm(x.float(), x.shape[-1:], weight, bias, self.eps).to(x.dtype)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Normalise (B, N, W) without weights in float32, then scale and shift it, each (B, T, 1, W) float32: the N tokens
    are T equal parts, each with its own timestep."""
    parts = F.layer_norm(x.float(), x.shape[-1:], eps=EPS).unflatten(1, (shift.shape[1], -1))
    return (parts * (1 + scale) + shift).flatten(1, 2).to(x.dtype)


def gated(x: Tensor, update: Tensor, gate: Tensor) -> Tensor:
    """Add an update (B, N, W) times its gate (B, T, 1, W) in float32."""
    parts = update.float().unflatten(1, (gate.shape[1], -1)) * gate
    return (x.float() + parts.flatten(1, 2)).to(x.dtype)


class SelfAttention(nn.Module):
    def __init__(self, params: WanParams):
        super().__init__()
        self.heads = params.heads
        self.q, self.k, self.v, self.o = (nn.Linear(params.width, params.width) for _ in range(4))
        self.norm_q, self.norm_k = RMSNorm(params.width), RMSNorm(params.width)

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        q, k, v = project_together((self.q, self.k, self.v), x)
        q, k, v = heads_of((self.norm_q(q), self.norm_k(k), v), self.heads)
        q, k = (apply_rope(each.float(), rope).to(v.dtype) for each in (q, k))
        return self.o(attention(q, k, v))


class CrossAttention(nn.Module):
    """Attention to the text and, with keys and values of its own, to the image; the two results are added."""

    def __init__(self, params: WanParams):
        super().__init__()
        self.heads = params.heads
        self.q, self.k, self.v, self.o = (nn.Linear(params.width, params.width) for _ in range(4))
        self.norm_q, self.norm_k = RMSNorm(params.width), RMSNorm(params.width)
        self.reads_image = params.image_width is not None
        if self.reads_image:
            self.k_img, self.v_img = nn.Linear(params.width, params.width), nn.Linear(params.width, params.width)
            self.norm_k_img = RMSNorm(params.width)

    def forward(self, x: Tensor, txt: Tensor, img: Tensor | None) -> Tensor:
        """x (B, N, W), txt (B, 512, W) with its padding, which is attended to, img (B, I, W) -> (B, N, W)."""
        k, v = project_together((self.k, self.v), txt)
        q, k, v = heads_of((self.norm_q(self.q(x)), self.norm_k(k), v), self.heads)
        out = attention(q, k, v)
        if self.reads_image:
            assert img is not None, "a model with an image encoder reads an image's features, or zeros"
            k, v = project_together((self.k_img, self.v_img), img)
            k, v = heads_of((self.norm_k_img(k), v), self.heads)
            out = out + attention(q, k, v)
        return self.o(out)


class WanAttentionBlock(nn.Module):
    def __init__(self, params: WanParams):
        super().__init__()
        self.self_attn = SelfAttention(params)
        self.norm3 = LayerNorm(params.width, eps=EPS)
        self.cross_attn = CrossAttention(params)
        self.ffn = nn.Sequential(
            nn.Linear(params.width, params.mlp_width), TanhGELU(), nn.Linear(params.mlp_width, params.width)
        )
        self.modulation = nn.Parameter(torch.zeros(1, 6, params.width))

    def forward(self, x: Tensor, vec: Tensor, rope: Rope, txt: Tensor, img: Tensor | None = None) -> Tensor:
        """x (B, N, W), vec (B, T, 6, W) of T timesteps -> x."""
        shift1, scale1, gate1, shift2, scale2, gate2 = (self.modulation.float() + vec.float()).chunk(6, dim=2)
        x = gated(x, self.self_attn(modulate(x, shift1, scale1), rope), gate1)
        x = x + self.cross_attn(self.norm3(x), txt, img)
        return gated(x, self.ffn(modulate(x, shift2, scale2)), gate2)


class ImageEmbedding(nn.Module):
    def __init__(self, params: WanParams):
        super().__init__()
        width = params.image_width or IMAGE_WIDTH
        self.proj = nn.Sequential(
            LayerNorm(width),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, params.width),
            LayerNorm(params.width),
        )
        if params.image_tokens:
            self.emb_pos = nn.Parameter(torch.zeros(1, params.image_tokens, width))

    def forward(self, features: Tensor) -> Tensor:
        """(B, I, 1280) -> (B, I, W)."""
        return self.proj(features + self.emb_pos if hasattr(self, "emb_pos") else features)


class Head(nn.Module):
    def __init__(self, params: WanParams):
        super().__init__()
        self.head = nn.Linear(params.width, PATCH_VALUES * params.channels)
        self.modulation = nn.Parameter(torch.zeros(1, 2, params.width))

    def forward(self, x: Tensor, vec: Tensor) -> Tensor:
        """x (B, N, W), vec (B, T, W) -> (B, N, 4C)."""
        shift, scale = (self.modulation.float() + vec.float()[:, :, None]).chunk(2, dim=2)
        return self.head(modulate(x, shift, scale))


class WanTransformer(BlockTransformer):
    def __init__(self, params: WanParams):
        super().__init__()
        self.params = params
        width = params.width
        self.patch_embedding = nn.Conv3d(params.in_channels, width, PATCH, stride=PATCH)
        self.text_embedding = nn.Sequential(nn.Linear(params.text_width, width), TanhGELU(), nn.Linear(width, width))
        self.time_embedding = nn.Sequential(nn.Linear(TIME_CHANNELS, width), nn.SiLU(), nn.Linear(width, width))
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        if params.image_width:
            self.img_emb = ImageEmbedding(params)
        self.blocks = nn.ModuleList(WanAttentionBlock(params) for _ in range(params.blocks))
        self.head = Head(params)

    @property
    def first_layer(self) -> nn.Module:
        return self.patch_embedding

    def forward(
        self, latents: Tensor, txt: Tensor, timesteps: Tensor, img: Tensor | None = None, skipped: Collection[int] = ()
    ) -> Tensor:
        """Predict the velocity, noise - clip.

        latents (B, C, f, h, w) with the channels that condition them, txt (B, 512, 4096), zeros where there is no text,
        timesteps in 0..1 float32, one for each clip (B,) or for each latent frame (B, f), img (B, I, 1280), None: there
        is no image, although the model reads one -> (B, C, f, h, w). h and w must be even. `skipped`: numbers of blocks
        to leave out.
        """
        dtype = self.dtype
        grid = grid3d_of(latents)
        times = timesteps.view(len(latents), -1)
        vec = self.time_embedding(timestep_embedding(times.flatten()).to(dtype)).unflatten(0, times.shape)  # (B, T, W)
        modulation = self.time_projection(vec).unflatten(-1, (6, -1))  # (B, T, 6, W)
        weight = self.patch_embedding.weight.flatten(1)  # a patch has no neighbours: one matrix product
        x = F.linear(pack_clip(latents.to(dtype)), weight, self.patch_embedding.bias)
        x, txt = with_gradients(x, self.text_embedding(txt.to(dtype)))
        if img is None and self.params.image_width:  # attention to one zero is that to many
            img = x.new_zeros(len(x), self.params.image_tokens or 1, self.params.image_width)
        features = None if img is None else self.img_emb(img.to(dtype))
        rope = rope_table(self.params, grid, x.device)

        for number, block in enumerate(self.blocks):
            if number in skipped:
                continue
            (x,) = self.run_block(block, (x,), modulation, rope, txt, features)
        return unpatchify(self.head(x, vec), grid)


def unpatchify(tokens: Tensor, grid: Grid3d) -> Tensor:
    """(B, N, 4C), channels last in each token -> (B, C, f, h, w)."""
    patches = tokens.unflatten(2, (*PATCH[1:], -1)).unflatten(1, grid)  # (B, f, rows, columns, 2, 2, C)
    return patches.permute(0, 6, 1, 2, 4, 3, 5).flatten(5).flatten(3, 4)


def rope_widths(head_width: int) -> tuple[int, int, int]:
    """Return the rotary dimensions of a head for frame, row and column: 44, 42, 42 of 128."""
    side = 2 * (head_width // 6)
    return head_width - 2 * side, side, side


@cache  # recorded graphs read them, so none may be freed
def rope_table(params: WanParams, grid: Grid3d, device: torch.device) -> Rope:
    """Return the rotary table of a clip's tokens, by latent frame, row and column."""
    return rope_of(clip_positions(grid), rope_widths(params.head_width), device)
