"""Blocks with two streams, image and text, that attend to each other, and the modules of such blocks in diffusers'
layout: names of modules are keys of checkpoints."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.library.diffusion.attention import attention
from sd_scripts.library.diffusion.dit_layers import Rope, modulate
from sd_scripts.library.kernels.norm_rope import normed_and_rotated

Attend = Callable[[Tensor, Tensor, Rope, Tensor | None], tuple[Tensor, Tensor]]
"""Image (B, N, W), text (B, T, W), rope and mask of N + T tokens -> what attention over both adds to each."""


def double_stream(
    img: Tensor,
    txt: Tensor,
    modulations: tuple[Sequence[Tensor], Sequence[Tensor]],
    attend: Attend,
    mlps: tuple[nn.Module, nn.Module],
    rope: Rope,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return img (B, N, W) and txt (B, T, W) after attention and MLPs. `modulations` of img and of txt: shift, scale
    and gate, each (B, 1, W), for attention and again for the MLP."""
    img_shift1, img_scale1, img_gate1, img_shift2, img_scale2, img_gate2 = modulations[0]
    txt_shift1, txt_scale1, txt_gate1, txt_shift2, txt_scale2, txt_gate2 = modulations[1]
    img_mlp, txt_mlp = mlps

    img_out, txt_out = attend(modulate(img, img_shift1, img_scale1), modulate(txt, txt_shift1, txt_scale1), rope, mask)
    img = img + img_gate1 * img_out
    img = img + img_gate2 * img_mlp(modulate(img, img_shift2, img_scale2))
    txt = txt + txt_gate1 * txt_out
    txt = txt + txt_gate2 * txt_mlp(modulate(txt, txt_shift2, txt_scale2))
    return img, txt


def attend_jointly(
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    query_norms: Sequence[Tensor],
    key_norms: Sequence[Tensor],
    rope: Rope,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return attention's outputs (B, N, W) and (B, T, W) for queries, keys and values of one stream, each (B, N, H, D),
    and of another, (B, T, H, D), which follows it. The norms' scales (D,): the first one's, the second one's."""
    queries, keys, values = zip(first, second, strict=True)
    q = normed_and_rotated(queries, query_norms, rope)  # (B, N + T, H, D)
    k = normed_and_rotated(keys, key_norms, rope)
    out = attention(q, k, torch.cat(values, dim=1), mask)
    of_first, of_second = out.split((first[0].shape[1], second[0].shape[1]), dim=1)
    return of_first, of_second


def attend(
    qkv: Sequence[Tensor], query_norm: Tensor, key_norm: Tensor, rope: Rope, mask: Tensor | None = None
) -> Tensor:
    """Return attention's output (B, S, W) for queries, keys and values of one stream, each (B, S, H, D)."""
    q, k, v = qkv
    q = normed_and_rotated([q], [query_norm], rope)
    k = normed_and_rotated([k], [key_norm], rope)
    return attention(q, k, v, mask)


class HeadNorm(nn.Module):
    """The scale of normalised heads, which `normed_and_rotated` applies."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


class Embedder(nn.Module):
    """Two-layer MLP from a vector to the model's width."""

    def __init__(self, features: int, width: int):
        super().__init__()
        self.linear_1 = nn.Linear(features, width)
        self.linear_2 = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.silu(self.linear_1(x)))


class Modulation(nn.Module):
    """Computes shifts, scales and gates from the vector of time, guidance and text."""

    def __init__(self, width: int, count: int):
        super().__init__()
        self.count = count
        self.linear = nn.Linear(width, count * width)

    def forward(self, vec: Tensor) -> tuple[Tensor, ...]:
        """(B, W) -> `count` tensors (B, 1, W): shift, scale, gate; twice for a double block."""
        return self.linear(F.silu(vec))[:, None].chunk(self.count, dim=-1)


class Activated(nn.Module):
    """The first layer of an MLP with its activation."""

    def __init__(self, width: int, inner: int, activation: nn.Module):
        super().__init__()
        self.proj = nn.Linear(width, inner)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.proj(x))


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int, activation: nn.Module):
        super().__init__()
        nothing = nn.Identity()  # in diffusers the dropout
        self.net = nn.Sequential(Activated(width, inner, activation), nothing, nn.Linear(inner, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class AdaLayerNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor, vec: Tensor) -> Tensor:
        scale, shift = self.linear(F.silu(vec))[:, None].chunk(2, dim=-1)  # in the blocks shift comes first
        return modulate(x, shift, scale)
