"""FramePack's transformer in the layout of its checkpoints: module names are the file's keys, as in diffusers.

Lvmin Zhang and Maneesh Agrawala, 2025: HunyuanVideo's blocks over a section of nine latent frames. Frames of the clip
that are known already, the start image among them, come before it as clean tokens, the farther away the fewer: in
patches of 1x2x2, 2x4x4 and 4x8x8. The start image also comes before the text, as SigLIP sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.families.common.blocks.streams import (
    AdaLayerNorm,
    Embedder,
    FeedForward,
    HeadNorm,
    Modulation,
    attend,
    attend_jointly,
    double_stream,
)
from sd_scripts.families.hunyuan_video.model import ROPE_BASE, HunyuanParams, PatchEmbed, joint_mask, mean_of_text
from sd_scripts.library.diffusion.attention import attention, padding_mask
from sd_scripts.library.diffusion.block_transformer import BlockTransformer, with_gradients
from sd_scripts.library.diffusion.dit_layers import (
    EPS,
    PATCH,
    TIME_CHANNELS,
    Rope,
    TanhGELU,
    grid3d_of,
    heads_of,
    modulate,
    rope_of,
    rope_widths,
    timestep_embedding,
    unpack_clip,
)
from sd_scripts.library.files.state_dicts import count
from sd_scripts.networks.layers import project_together


@dataclass(frozen=True, kw_only=True)
class FramePackParams(HunyuanParams):
    """Sizes of a transformer. The defaults are FramePack."""

    image_width: int = 1152

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> FramePackParams:
        """Read the sizes from a checkpoint's shapes. Raises KeyError if a needed key is missing."""
        width, channels = shapes["x_embedder.proj.weight"][:2]
        return cls(
            channels=channels,
            width=width,
            heads=width // shapes["transformer_blocks.0.attn.norm_q.weight"][0],
            mlp_width=shapes["transformer_blocks.0.ff.net.0.proj.weight"][0],
            text_width=shapes["context_embedder.proj_in.weight"][1],
            pooled_width=shapes["time_text_embed.text_embedder.linear_1.weight"][1],
            refiner_blocks=count(shapes, r"context_embedder\.token_refiner\.refiner_blocks\.\d+\.norm1\.weight"),
            double_blocks=count(shapes, r"transformer_blocks\.\d+\.attn\.norm_q\.weight"),
            single_blocks=count(shapes, r"single_transformer_blocks\.\d+\.attn\.norm_q\.weight"),
            image_width=shapes["image_projection.up.weight"][1],
        )


class Attention(nn.Module):
    """The projections of an attention; those of the text, if it has its own, begin with `add_`."""

    def __init__(self, params: HunyuanParams, *, normed: bool = True, out: bool = True, text: bool = False):
        super().__init__()
        width, head = params.width, params.head_width
        self.heads = params.heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        if normed:
            self.norm_q, self.norm_k = HeadNorm(head), HeadNorm(head)
        if text:
            self.add_q_proj, self.add_k_proj, self.add_v_proj = (nn.Linear(width, width) for _ in range(3))
            self.norm_added_q, self.norm_added_k = HeadNorm(head), HeadNorm(head)
            self.to_add_out = nn.Linear(width, width)
        if out:
            self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def qkv(self, x: Tensor) -> list[Tensor]:
        """(B, S, W) -> q, k, v, each (B, S, H, D)."""
        return heads_of(project_together((self.to_q, self.to_k, self.to_v), x), self.heads)

    def jointly(self, img: Tensor, txt: Tensor, rope: Rope, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the outputs of attention over both: img (B, N, W) and txt (B, T, W)."""
        txt_qkv = heads_of(project_together((self.add_q_proj, self.add_k_proj, self.add_v_proj), txt), self.heads)
        query_norms = [self.norm_q.weight, self.norm_added_q.weight]
        key_norms = [self.norm_k.weight, self.norm_added_k.weight]
        img_out, txt_out = attend_jointly(self.qkv(img), txt_qkv, query_norms, key_norms, rope, mask)
        return self.to_out[0](img_out), self.to_add_out(txt_out)


class RefinerBlock(nn.Module):
    """A block over the text alone, which timestep and text modulate by gates only."""

    def __init__(self, params: HunyuanParams):
        super().__init__()
        self.norm1 = nn.LayerNorm(params.width, eps=EPS)
        self.attn = Attention(params, normed=False)
        self.norm2 = nn.LayerNorm(params.width, eps=EPS)
        self.ff = FeedForward(params.width, params.mlp_width, nn.SiLU())
        self.norm_out = Modulation(params.width, 2)

    def forward(self, x: Tensor, vec: Tensor, mask: Tensor | None) -> Tensor:
        gate1, gate2 = self.norm_out(vec)
        q, k, v = self.attn.qkv(self.norm1(x))
        x = x + gate1 * self.attn.to_out[0](attention(q, k, v, mask))
        return x + gate2 * self.ff(self.norm2(x))


class Refiners(nn.Module):
    def __init__(self, params: HunyuanParams):
        super().__init__()
        self.refiner_blocks = nn.ModuleList(RefinerBlock(params) for _ in range(params.refiner_blocks))


class Embedders(nn.Module):
    """Adds up the vectors of time, of a text and, with `guided`, of the guidance."""

    def __init__(self, params: HunyuanParams, features: int, *, guided: bool):
        super().__init__()
        self.timestep_embedder = Embedder(TIME_CHANNELS, params.width)
        if guided:
            self.guidance_embedder = Embedder(TIME_CHANNELS, params.width)
        self.text_embedder = Embedder(features, params.width)

    def forward(self, timesteps: Tensor, text: Tensor, guidance: Tensor | None = None) -> Tensor:
        vec = self.timestep_embedder(timestep_embedding(timesteps).to(text.dtype)) + self.text_embedder(text)
        if guidance is not None:
            vec = vec + self.guidance_embedder(timestep_embedding(guidance).to(text.dtype))
        return vec  # type: ignore[no-any-return]


class TokenRefiner(nn.Module):
    def __init__(self, params: HunyuanParams):
        super().__init__()
        self.time_text_embed = Embedders(params, params.text_width, guided=False)
        self.proj_in = nn.Linear(params.text_width, params.width)
        self.token_refiner = Refiners(params)

    def forward(self, text: Tensor, timesteps: Tensor, valid: Tensor | None) -> Tensor:
        vec = self.time_text_embed(timesteps, mean_of_text(text, valid))
        mask = None if valid is None else padding_mask(valid, text.dtype)
        x = self.proj_in(text)
        for block in self.token_refiner.refiner_blocks:
            x = block(x, vec, mask)
        return x


class HunyuanVideoTransformerBlock(nn.Module):
    def __init__(self, params: HunyuanParams):
        super().__init__()
        self.norm1, self.norm1_context = Modulation(params.width, 6), Modulation(params.width, 6)
        self.attn = Attention(params, text=True)
        self.ff = FeedForward(params.width, params.mlp_width, TanhGELU())
        self.ff_context = FeedForward(params.width, params.mlp_width, TanhGELU())

    def forward(
        self, img: Tensor, txt: Tensor, vec: Tensor, rope: Rope, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """img (B, N, W), txt (B, T, W), vec (B, W), mask as padding_mask returns it for N + T tokens -> img, txt."""
        modulations = self.norm1(vec), self.norm1_context(vec)
        return double_stream(img, txt, modulations, self.attn.jointly, (self.ff, self.ff_context), rope, mask)


class HunyuanVideoSingleTransformerBlock(nn.Module):
    """Parallel attention and MLP with a fused output projection."""

    def __init__(self, params: HunyuanParams):
        super().__init__()
        self.attn = Attention(params, out=False)
        self.norm = Modulation(params.width, 3)
        self.proj_mlp = nn.Linear(params.width, params.mlp_width)
        self.act_mlp = TanhGELU()
        self.proj_out = nn.Linear(params.width + params.mlp_width, params.width)

    def forward(self, x: Tensor, vec: Tensor, rope: Rope, mask: Tensor | None = None) -> Tensor:
        """x (B, S, W) of clip and text, vec (B, W) -> x."""
        shift, scale, gate = self.norm(vec)
        normed = modulate(x, shift, scale)
        attn = self.attn
        out = attend(attn.qkv(normed), attn.norm_q.weight, attn.norm_k.weight, rope, mask)
        return x + gate * self.proj_out(torch.cat((out, self.act_mlp(self.proj_mlp(normed))), dim=-1))


class ImageProjection(nn.Module):
    def __init__(self, params: FramePackParams):
        super().__init__()
        self.up = nn.Linear(params.image_width, 3 * params.width)
        self.down = nn.Linear(3 * params.width, params.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(x)))


class CleanEmbed(nn.Module):
    """Computes tokens of clean latents, in patches of three sizes."""

    def __init__(self, params: HunyuanParams):
        super().__init__()

        def patches(by: int) -> nn.Conv3d:
            size = (by, PATCH * by, PATCH * by)
            return nn.Conv3d(params.channels, params.width, size, size)

        self.proj, self.proj_2x, self.proj_4x = patches(1), patches(2), patches(4)

    def forward(self, latents: Tensor, by: int) -> Tensor:
        """(B, C, f, h, w), `by` 1, 2 or 4 -> (B, N, W). What does not fill a patch is padded with the last values."""
        layer = {1: self.proj, 2: self.proj_2x, 4: self.proj_4x}[by]
        padded = _padded(latents, (by, PATCH * by, PATCH * by)) if by > 1 else latents
        return layer(padded).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


def _padded(x: Tensor, multiples: Sequence[int]) -> Tensor:
    """Repeat the last values of (B, C, f, h, w) up to multiples of these sizes."""
    missing = [-size % multiple for size, multiple in zip(x.shape[2:], multiples, strict=True)]
    return F.pad(x, (0, missing[2], 0, missing[1], 0, missing[0]), mode="replicate")


Known = tuple[Tensor, Tensor, int]
"""Clean latents (B, C, f, h, w), their places in the clip (f,) and the factor of their patches, 1, 2 or 4."""


class FramePackTransformer(BlockTransformer):
    def __init__(self, params: FramePackParams):
        super().__init__()
        self.params = params
        self.x_embedder = PatchEmbed(params.channels, params.width)
        self.clean_x_embedder = CleanEmbed(params)
        self.context_embedder = TokenRefiner(params)
        self.image_projection = ImageProjection(params)
        self.time_text_embed = Embedders(params, params.pooled_width, guided=True)
        self.transformer_blocks = nn.ModuleList(
            HunyuanVideoTransformerBlock(params) for _ in range(params.double_blocks)
        )
        self.single_transformer_blocks = nn.ModuleList(
            HunyuanVideoSingleTransformerBlock(params) for _ in range(params.single_blocks)
        )
        self.norm_out = AdaLayerNorm(params.width)
        self.proj_out = nn.Linear(params.width, PATCH * PATCH * params.channels)

    @property
    def first_layer(self) -> nn.Module:
        return self.x_embedder.proj

    def forward(
        self,
        latents: Tensor,
        places: Tensor,
        known: Sequence[Known],
        text: Tensor,
        pooled: Tensor,
        image: Tensor,
        timesteps: Tensor,
        guidance: Tensor,
        text_mask: Tensor | None = None,
    ) -> Tensor:
        """Predict the velocity, noise - clip, of a section.

        latents (B, 16, f, h, w) at these places (f,) of the clip, `known` from near to far, text (B, T, 4096), pooled
        (B, 768), image (B, 729, 1152), timesteps (B,) float32 in 0..1, guidance (B,), text_mask (B, T) bool, True
        where there is text, which padding follows -> (B, 16, f, h, w).
        """
        dtype = self.dtype
        vec = self.time_text_embed(timesteps, pooled.to(dtype), guidance)
        seen = self.image_projection(image.to(dtype))
        txt = torch.cat((seen, self.context_embedder(text.to(dtype), timesteps, text_mask)), dim=1)
        clean = [self.clean_x_embedder(each.to(dtype), by) for each, _, by in reversed(known)]
        img = torch.cat((*clean, self.x_embedder(latents.to(dtype))), dim=1)
        img, txt = with_gradients(img, txt)

        grid, tokens = grid3d_of(latents), img.shape[1]
        groups = [*((at, by) for _, at, by in reversed(known)), (places, 1)]
        rope = rope_table(self.params.head_width, groups, grid[1:], txt.shape[1])
        mask = joint_mask(tokens + seen.shape[1], text_mask, dtype)

        for block in self.transformer_blocks:
            img, txt = self.run_block(block, (img, txt), vec, rope, mask)
        x = torch.cat((img, txt), dim=1)
        for block in self.single_transformer_blocks:
            (x,) = self.run_block(block, (x,), vec, rope, mask)
        predicted = x[:, tokens - grid[0] * grid[1] * grid[2] : tokens]
        return unpack_clip(self.proj_out(self.norm_out(predicted, vec)), grid)


def rope_table(head_width: int, groups: Sequence[tuple[Tensor, int]], size: tuple[int, int], txt_tokens: int) -> Rope:
    """Return the rotary table of groups of tokens, and of the text, which is not rotated. Each group is frames at
    places (f,) of the clip and the factor of its patches: larger patches have the mean of the cosines and sines that
    they cover. Places are data, so that recorded steps can have different ones."""
    tables = [_group_table(head_width, places, size, by) for places, by in groups]
    tables.append(_table(head_width, groups[0][0].new_zeros(txt_tokens, 3)))
    cos, sin = (torch.cat(parts, dim=1) for parts in zip(*tables, strict=True))
    return cos, sin


def _group_table(head_width: int, places: Tensor, size: tuple[int, int], by: int) -> Rope:
    rows, columns = (torch.arange(side, device=places.device) for side in size)
    table = _table(head_width, torch.cartesian_prod(places, rows, columns))
    if by == 1:
        return table
    volumes = torch.cat(table).squeeze(2).mT.unflatten(-1, (len(places), *size))  # (2, D/2, f, rows, columns)
    cos, sin = F.avg_pool3d(_padded(volumes, (by,) * 3), by).flatten(2).mT[:, None, :, None]
    return cos, sin


def _table(head_width: int, positions: Tensor) -> Rope:
    return rope_of(positions.double(), rope_widths(head_width), positions.device, base=ROPE_BASE)
