"""Qwen-Image's transformer in the layout of its checkpoints: module names are the file's keys, as in diffusers.

Qwen team, 2025. Images are packed latents: each token is a 2x2 patch of 16 channels. All blocks keep separate weights
for text and image and let them attend to each other; the text that leaves the last one is not read. The tokens of
control images, such as the image to edit, follow the noisy image's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.families.common.blocks.streams import (
    AdaLayerNorm,
    Embedder,
    FeedForward,
    HeadNorm,
    attend_jointly,
    double_stream,
)
from sd_scripts.library.diffusion.attention import padding_mask
from sd_scripts.library.diffusion.block_transformer import BlockTransformer, with_gradients
from sd_scripts.library.diffusion.dit_layers import (
    EPS,
    TIME_CHANNELS,
    Grid,
    Rope,
    TanhGELU,
    heads_of,
    rope_of,
    rope_widths,
    timestep_embedding,
)
from sd_scripts.networks.layers import project_together

DIAGONAL = 4096
"""Positions of text tokens that have a row in the rotary table."""


@dataclass(frozen=True, kw_only=True)
class QwenImageParams:
    """Sizes of a transformer. The defaults are Qwen-Image."""

    channels: int = 64
    width: int = 3072
    heads: int = 24
    mlp_width: int = 12288
    text_width: int = 3584
    blocks: int = 60

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> QwenImageParams:
        """Read the sizes from a checkpoint's shapes. Raises KeyError if a needed key is missing."""
        width, channels = shapes["img_in.weight"]
        first = "transformer_blocks.0"
        return cls(
            channels=channels,
            width=width,
            heads=width // shapes[f"{first}.attn.norm_q.weight"][0],
            mlp_width=shapes[f"{first}.img_mlp.net.0.proj.weight"][0],
            text_width=shapes["txt_in.weight"][1],
            blocks=len({found[1] for key in shapes if (found := re.match(r"transformer_blocks\.(\d+)\.", key))}),
        )


class RMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., W) of any dtype -> float32."""
        return F.rms_norm(x.float(), x.shape[-1:], eps=EPS) * self.weight.float()


class TimeEmbedding(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.timestep_embedder = Embedder(TIME_CHANNELS, width)

    def forward(self, t: Tensor, dtype: torch.dtype) -> Tensor:
        """Timesteps (B,) float32 in 0..1 -> (B, W). They are not rounded to the model's dtype before the embedding,
        which diffusers does."""
        return self.timestep_embedder(timestep_embedding(t).to(dtype))


class Modulation(nn.Sequential):
    """Computes shift, scale and gate for attention, then for the MLP, from the embedded timestep."""

    def __init__(self, width: int):
        super().__init__(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, vec: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """(B, W) -> six tensors (B, 1, W)."""
        return super().forward(vec)[:, None].chunk(6, dim=-1)


class JointAttention(nn.Module):
    """Attention of image and text tokens over both, each with projections of their own."""

    def __init__(self, params: QwenImageParams):
        super().__init__()
        self.heads = params.heads
        width = params.width
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.add_q_proj, self.add_k_proj, self.add_v_proj = (nn.Linear(width, width) for _ in range(3))
        self.norm_q, self.norm_k = HeadNorm(params.head_width), HeadNorm(params.head_width)
        self.norm_added_q, self.norm_added_k = HeadNorm(params.head_width), HeadNorm(params.head_width)
        self.to_out = nn.ModuleList([nn.Linear(width, width)])
        self.to_add_out = nn.Linear(width, width)

    def forward(self, img: Tensor, txt: Tensor, rope: Rope, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """img (B, N, W), txt (B, T, W), rope and mask of the image's tokens and then the text's -> img, txt."""
        img_qkv = heads_of(project_together((self.to_q, self.to_k, self.to_v), img), self.heads)
        txt_qkv = heads_of(project_together((self.add_q_proj, self.add_k_proj, self.add_v_proj), txt), self.heads)
        query_norms = [self.norm_q.weight, self.norm_added_q.weight]
        key_norms = [self.norm_k.weight, self.norm_added_k.weight]
        img_out, txt_out = attend_jointly(img_qkv, txt_qkv, query_norms, key_norms, rope, mask)
        return self.to_out[0](img_out), self.to_add_out(txt_out)


class QwenImageTransformerBlock(nn.Module):
    def __init__(self, params: QwenImageParams):
        super().__init__()
        self.img_mod = Modulation(params.width)
        self.attn = JointAttention(params)
        self.img_mlp = FeedForward(params.width, params.mlp_width, TanhGELU())
        self.txt_mod = Modulation(params.width)
        self.txt_mlp = FeedForward(params.width, params.mlp_width, TanhGELU())

    def forward(
        self,
        img: Tensor,
        txt: Tensor,
        vec: Tensor,
        rope: Rope,
        mask: Tensor | None = None,
        clean: tuple[Tensor, int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """img (B, N, W), txt (B, T, W), vec (B, W), mask as padding_mask returns it for N + T tokens -> img, txt.
        `clean`: the vector of timestep 0, and how many of the last image tokens, which are of control images, use
        it instead of vec."""
        modulations = self._image_modulation(img, vec, clean), self.txt_mod(vec)
        img, txt = double_stream(img, txt, modulations, self.attn, (self.img_mlp, self.txt_mlp), rope, mask)
        return _within_fp16(img), _within_fp16(txt)

    def _image_modulation(self, img: Tensor, vec: Tensor, clean: tuple[Tensor, int] | None) -> tuple[Tensor, ...]:
        noisy: tuple[Tensor, ...] = self.img_mod(vec)
        if clean is None:
            return noisy
        zero, tokens = clean
        parts = zip(noisy, self.img_mod(zero), strict=True)
        return tuple(
            torch.cat((part.expand(-1, img.shape[1] - tokens, -1), other.expand(-1, tokens, -1)), dim=1)
            for part, other in parts
        )  # each (B, N, W)


def _within_fp16(x: Tensor) -> Tensor:
    """Clamp what overflows in fp16."""
    return x.clamp(-65504, 65504) if x.dtype == torch.float16 else x


class QwenImageTransformer(BlockTransformer):
    def __init__(self, params: QwenImageParams):
        super().__init__()
        self.params = params
        self.zero_cond_t = False
        """Whether control images are modulated as at timestep 0, as in Qwen-Image-Edit-2511: shapes do not show it."""
        self.time_text_embed = TimeEmbedding(params.width)
        self.txt_norm = RMSNorm(params.text_width)
        self.img_in = nn.Linear(params.channels, params.width)
        self.txt_in = nn.Linear(params.text_width, params.width)
        self.transformer_blocks = nn.ModuleList(QwenImageTransformerBlock(params) for _ in range(params.blocks))
        self.norm_out = AdaLayerNorm(params.width)
        self.proj_out = nn.Linear(params.width, params.channels)

    def forward(
        self,
        img: Tensor,
        txt: Tensor,
        timesteps: Tensor,
        grid: Grid,
        txt_mask: Tensor | None = None,
        control_grids: tuple[Grid, ...] = (),
    ) -> Tensor:
        """Predict the velocity, noise - image, of each token of the noisy image.

        img (B, N, 64) packed latents of the noisy image and then of its control images, txt (B, T, 3584), timesteps
        (B,) float32 in 0..1, grid of the noisy image and control_grids of the others, N = sum of rows * columns,
        txt_mask (B, T) bool, True where there is text, which padding follows -> (B, M, 64), M tokens of the noisy
        image.
        """
        dtype = self.dtype
        vec = self.time_text_embed(timesteps, dtype)
        img, txt = with_gradients(self.img_in(img.to(dtype)), self.txt_in(self.txt_norm(txt).to(dtype)))
        rope = rope_table(self.params, (grid, *control_grids), txt.shape[1], img.device)
        mask = None if txt_mask is None else padding_mask(F.pad(txt_mask.bool(), (img.shape[1], 0), value=True), dtype)

        clean = None
        if self.zero_cond_t and control_grids:
            zero = self.time_text_embed(torch.zeros_like(timesteps), dtype)
            clean = zero, img.shape[1] - math.prod(grid)

        for block in self.transformer_blocks:
            img, txt = self.run_block(block, (img, txt), vec, rope, mask, clean)
        img = _Used.apply(img, txt)
        return self.proj_out(self.norm_out(img[:, : math.prod(grid)], vec))


class _Used(torch.autograd.Function):
    """Identity of the image that gives the text, which nothing reads, a gradient of 0.

    So the weights behind the last text have gradients too, whether compiled or not: processes that average gradients
    and updates during backward wait for all of them.
    """

    @staticmethod
    def forward(ctx: Any, img: Tensor, txt: Tensor) -> Tensor:  # type: ignore[override]
        ctx.text = txt.shape
        return img.view_as(img)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return grad, grad.new_zeros(ctx.text)


def rope_table(params: QwenImageParams, grids: tuple[Grid, ...], txt_tokens: int, device: torch.device) -> Rope:
    """Return the rotary table of each image row by row, then of the text.

    The first coordinate is the number of the image: 0 for the noisy one, 1, 2, ... for its control images. Rows and
    columns are counted from the middle of each. The text is on the diagonal beyond all of them: its first token at
    half of the longest side, on all three axes.
    """
    begin = max(side // 2 for grid in grids for side in grid)
    assert begin + txt_tokens <= DIAGONAL, "larger images and longer captions than any graph can process"
    images = [_image_rope(params, grid, number, device) for number, grid in enumerate(grids)]
    text = (line[:, begin : begin + txt_tokens] for line in _diagonal_rope(params, device))
    cos, sin = (torch.cat(parts, dim=1) for parts in zip(*images, text, strict=True))
    return cos, sin


@cache  # recorded graphs read them, so none may be freed
def _image_rope(params: QwenImageParams, grid: Grid, number: int, device: torch.device) -> Rope:
    rows, columns = grid
    positions = torch.full((rows * columns, 3), number, dtype=torch.float64)
    positions[:, 1] = (torch.arange(rows) - (rows - rows // 2)).repeat_interleave(columns)
    positions[:, 2] = (torch.arange(columns) - (columns - columns // 2)).repeat(rows)
    return rope_of(positions, rope_widths(params.head_width), device)


@cache
def _diagonal_rope(params: QwenImageParams, device: torch.device) -> Rope:
    """Return the table of positions that are equal on all axes."""
    positions = torch.arange(DIAGONAL, dtype=torch.float64)[:, None].expand(-1, 3)
    return rope_of(positions, rope_widths(params.head_width), device)
