"""HunyuanVideo's transformer in the layout of its checkpoints: module names are the official file's keys.

Tencent, 2024; written from the layout of its files and checked against diffusers. Clips are packed latents: each token
is a 1x2x2 patch of 16 channels. Two refiner blocks read the text first. Double blocks keep separate weights for clip
and text and let them attend to each other; single blocks treat both alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.families.common.blocks.original_layout import FinalLayer, VectorEmbedder
from sd_scripts.families.common.blocks.streams import (
    Embedder,
    HeadNorm,
    Modulation,
    attend,
    attend_jointly,
    double_stream,
)
from sd_scripts.library.diffusion.attention import attention, padding_mask
from sd_scripts.library.diffusion.block_transformer import BlockTransformer, with_gradients
from sd_scripts.library.diffusion.dit_layers import (
    EPS,
    PATCH,
    TIME_CHANNELS,
    Grid3d,
    Rope,
    TanhGELU,
    clip_positions,
    grid3d_of,
    heads_of,
    modulate,
    pack_clip,
    rope_of,
    rope_widths,
    timestep_embedding,
    unpack_clip,
)
from sd_scripts.library.files.state_dicts import count
from sd_scripts.networks.layers import project_split

ROPE_BASE = 256


@dataclass(frozen=True, kw_only=True)
class HunyuanParams:
    """Sizes of a transformer. The defaults are HunyuanVideo T2V."""

    channels: int = 16
    image_channels: int = 0
    """Channels of the start image's latents, which follow the noisy ones; 0: it makes clips from text."""
    width: int = 3072
    heads: int = 24
    mlp_width: int = 12288
    text_width: int = 4096
    pooled_width: int = 768
    refiner_blocks: int = 2
    double_blocks: int = 20
    single_blocks: int = 40

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> HunyuanParams:
        """Read the sizes from a checkpoint's shapes under official keys. Raises KeyError if a needed key is missing."""
        width, inputs = shapes["img_in.proj.weight"][:2]
        channels = shapes["final_layer.linear.weight"][0] // PATCH**2
        return cls(
            channels=channels,
            image_channels=inputs - channels,
            width=width,
            heads=width // shapes["double_blocks.0.img_attn_q_norm.weight"][0],
            mlp_width=shapes["double_blocks.0.img_mlp.fc1.weight"][0],
            text_width=shapes["txt_in.input_embedder.weight"][1],
            pooled_width=shapes["vector_in.in_layer.weight"][1],
            refiner_blocks=count(shapes, r"txt_in\.individual_token_refiner\.blocks\.\d+\.norm1\.weight"),
            double_blocks=count(shapes, r"double_blocks\.\d+\.img_attn_q_norm\.weight"),
            single_blocks=count(shapes, r"single_blocks\.\d+\.q_norm\.weight"),
        )


class PatchEmbed(nn.Module):
    """Computes tokens from patches. The convolution, whose patches do not overlap, is a product with packed latents."""

    def __init__(self, channels: int, width: int):
        super().__init__()
        patch = (1, PATCH, PATCH)
        self.proj = nn.Conv3d(channels, width, patch, patch)

    def forward(self, latents: Tensor) -> Tensor:
        """(B, C, f, h, w) -> (B, f · h/2 · w/2, W)."""
        return F.linear(pack_clip(latents), self.proj.weight.flatten(1), self.proj.bias)


class TimestepEmbedder(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(TIME_CHANNELS, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Tensor, dtype: torch.dtype) -> Tensor:
        """Timesteps or guidance (B,) float32, which are multiplied by 1000 -> (B, W)."""
        return self.mlp(timestep_embedding(t).to(dtype))  # type: ignore[no-any-return]


class MLP(nn.Module):
    def __init__(self, width: int, inner: int, activation: nn.Module):
        super().__init__()
        self.fc1 = nn.Linear(width, inner)
        self.act = activation
        self.fc2 = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class RefinerBlock(nn.Module):
    """A block over the text alone, which timestep and text modulate by gates only."""

    def __init__(self, params: HunyuanParams):
        super().__init__()
        width = params.width
        self.heads = params.heads
        self.norm1 = nn.LayerNorm(width, eps=EPS)
        self.self_attn_qkv = nn.Linear(width, 3 * width)
        self.self_attn_proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=EPS)
        self.mlp = MLP(width, params.mlp_width, nn.SiLU())
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x: Tensor, vec: Tensor, mask: Tensor | None) -> Tensor:
        gate1, gate2 = self.adaLN_modulation(vec)[:, None].chunk(2, dim=-1)
        q, k, v = heads_of(self.self_attn_qkv(self.norm1(x)).chunk(3, dim=-1), self.heads)
        x = x + gate1 * self.self_attn_proj(attention(q, k, v, mask))
        return x + gate2 * self.mlp(self.norm2(x))


class Refiners(nn.Module):
    def __init__(self, params: HunyuanParams):
        super().__init__()
        self.blocks = nn.ModuleList(RefinerBlock(params) for _ in range(params.refiner_blocks))


class TokenRefiner(nn.Module):
    def __init__(self, params: HunyuanParams):
        super().__init__()
        self.input_embedder = nn.Linear(params.text_width, params.width)
        self.t_embedder = TimestepEmbedder(params.width)
        self.c_embedder = Embedder(params.text_width, params.width)
        self.individual_token_refiner = Refiners(params)

    def forward(self, text: Tensor, timesteps: Tensor, valid: Tensor | None) -> Tensor:
        """text (B, T, 4096), timesteps (B,), valid (B, T) bool or None if nothing is padded -> (B, T, W)."""
        dtype = text.dtype
        vec = self.t_embedder(timesteps, dtype) + self.c_embedder(mean_of_text(text, valid))
        x = self.input_embedder(text)
        mask = None if valid is None else padding_mask(valid, dtype)
        for block in self.individual_token_refiner.blocks:
            x = block(x, vec, mask)
        return x


def mean_of_text(text: Tensor, valid: Tensor | None) -> Tensor:
    """Return the mean (B, C) of the tokens (B, T, C) that are not padding."""
    if valid is None:
        return text.mean(dim=1)
    kept = valid.float()[..., None]
    return ((text * kept).sum(dim=1) / kept.sum(dim=1)).to(text.dtype)


class MMDoubleStreamBlock(nn.Module):
    def __init__(self, params: HunyuanParams):
        super().__init__()
        width, head = params.width, params.head_width
        self.heads = params.heads
        self.img_mod = Modulation(width, 6)
        self.img_attn_qkv = nn.Linear(width, 3 * width)
        self.img_attn_q_norm = HeadNorm(head)
        self.img_attn_k_norm = HeadNorm(head)
        self.img_attn_proj = nn.Linear(width, width)
        self.img_mlp = MLP(width, params.mlp_width, TanhGELU())
        self.txt_mod = Modulation(width, 6)
        self.txt_attn_qkv = nn.Linear(width, 3 * width)
        self.txt_attn_q_norm = HeadNorm(head)
        self.txt_attn_k_norm = HeadNorm(head)
        self.txt_attn_proj = nn.Linear(width, width)
        self.txt_mlp = MLP(width, params.mlp_width, TanhGELU())

    def forward(
        self, img: Tensor, txt: Tensor, vec: Tensor, rope: Rope, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """img (B, N, W), txt (B, T, W), vec (B, W), mask as padding_mask returns it for N + T tokens -> img, txt."""
        modulations = self.img_mod(vec), self.txt_mod(vec)
        return double_stream(img, txt, modulations, self.attend, (self.img_mlp, self.txt_mlp), rope, mask)

    def attend(self, img: Tensor, txt: Tensor, rope: Rope, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the outputs of attention over both: img (B, N, W) and txt (B, T, W)."""
        widths = (img.shape[-1],) * 3
        img_qkv = heads_of(project_split(self.img_attn_qkv, img, widths), self.heads)
        txt_qkv = heads_of(project_split(self.txt_attn_qkv, txt, widths), self.heads)
        query_norms = [self.img_attn_q_norm.weight, self.txt_attn_q_norm.weight]
        key_norms = [self.img_attn_k_norm.weight, self.txt_attn_k_norm.weight]
        img_out, txt_out = attend_jointly(img_qkv, txt_qkv, query_norms, key_norms, rope, mask)
        return self.img_attn_proj(img_out), self.txt_attn_proj(txt_out)


class MMSingleStreamBlock(nn.Module):
    """Parallel attention and MLP with a fused input and a fused output projection."""

    def __init__(self, params: HunyuanParams):
        super().__init__()
        self.heads = params.heads
        self.widths = (*(params.width,) * 3, params.mlp_width)
        self.linear1 = nn.Linear(params.width, sum(self.widths))
        self.linear2 = nn.Linear(params.width + params.mlp_width, params.width)
        self.q_norm = HeadNorm(params.head_width)
        self.k_norm = HeadNorm(params.head_width)
        self.mlp_act = TanhGELU()
        self.modulation = Modulation(params.width, 3)

    def forward(self, x: Tensor, vec: Tensor, rope: Rope, mask: Tensor | None = None) -> Tensor:
        """x (B, S, W) of clip and text, vec (B, W) -> x."""
        shift, scale, gate = self.modulation(vec)
        *qkv, hidden = project_split(self.linear1, modulate(x, shift, scale), self.widths)
        out = attend(heads_of(qkv, self.heads), self.q_norm.weight, self.k_norm.weight, rope, mask)
        return x + gate * self.linear2(torch.cat((out, self.mlp_act(hidden)), dim=-1))


class HunyuanVideoTransformer(BlockTransformer):
    def __init__(self, params: HunyuanParams):
        super().__init__()
        self.params = params
        self.img_in = PatchEmbed(params.channels + params.image_channels, params.width)
        self.txt_in = TokenRefiner(params)
        self.time_in = TimestepEmbedder(params.width)
        self.vector_in = VectorEmbedder(params.pooled_width, params.width)
        self.guidance_in = TimestepEmbedder(params.width)
        self.double_blocks = nn.ModuleList(MMDoubleStreamBlock(params) for _ in range(params.double_blocks))
        self.single_blocks = nn.ModuleList(MMSingleStreamBlock(params) for _ in range(params.single_blocks))
        modulation = nn.Sequential(nn.SiLU(), nn.Linear(params.width, 2 * params.width))
        self.final_layer = FinalLayer(params.width, PATCH * PATCH * params.channels, modulation)

    @property
    def first_layer(self) -> nn.Module:
        return self.img_in.proj

    def forward(
        self,
        latents: Tensor,
        text: Tensor,
        pooled: Tensor,
        timesteps: Tensor,
        guidance: Tensor,
        text_mask: Tensor | None = None,
    ) -> Tensor:
        """Predict the velocity, noise - clip.

        latents (B, 16, f, h, w), followed by the start image's 16 channels if the model reads them, text (B, T, 4096),
        pooled (B, 768), timesteps (B,) float32 in 0..1, guidance (B,), text_mask (B, T) bool, True where there is text,
        which padding follows -> (B, 16, f, h, w).
        """
        dtype = self.dtype
        vec = self.time_in(timesteps, dtype) + self.guidance_in(guidance, dtype) + self.vector_in(pooled.to(dtype))
        img, txt = with_gradients(self.img_in(latents.to(dtype)), self.txt_in(text.to(dtype), timesteps, text_mask))
        grid, tokens = grid3d_of(latents), img.shape[1]
        rope = rope_table(self.params.head_width, grid, txt.shape[1], img.device)
        mask = joint_mask(tokens, text_mask, dtype)

        for block in self.double_blocks:
            img, txt = self.run_block(block, (img, txt), vec, rope, mask)
        x = torch.cat((img, txt), dim=1)
        for block in self.single_blocks:
            (x,) = self.run_block(block, (x,), vec, rope, mask)
        return unpack_clip(self.final_layer(x[:, :tokens], vec), grid)


def joint_mask(tokens: int, text_mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return the attention mask of a clip's tokens, which are all seen, and a text (B, T) with padding at its end."""
    return None if text_mask is None else padding_mask(F.pad(text_mask.bool(), (tokens, 0), value=True), dtype)


@cache  # recorded graphs read them, so none may be freed
def rope_table(head_width: int, grid: Grid3d, txt_tokens: int, device: torch.device) -> Rope:
    """Return the rotary table of the clip, frame by frame and row by row, then of the text, which is not rotated."""
    clip = clip_positions(grid)
    positions = torch.cat((clip, clip.new_zeros(txt_tokens, 3)))
    return rope_of(positions, rope_widths(head_width), device, base=ROPE_BASE)
