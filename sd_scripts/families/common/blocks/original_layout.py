"""Modules of blocks with two streams in the layout of FLUX's and HunyuanVideo's own files: names of modules are keys of
checkpoints."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.library.diffusion.dit_layers import heads_of, modulate
from sd_scripts.networks.layers import project_split


class VectorEmbedder(nn.Module):
    """Two-layer MLP from a vector to the model's width."""

    def __init__(self, features: int, width: int, *, bias: bool = True):
        super().__init__()
        self.in_layer = nn.Linear(features, width, bias=bias)
        self.out_layer = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.out_layer(F.silu(self.in_layer(x)))


class RMSNorm(nn.Module):
    """The scale of normalised heads, which `normed_and_rotated` applies."""

    def __init__(self, width: int):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))


class QKNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.query_norm = RMSNorm(width)
        self.key_norm = RMSNorm(width)


class SelfAttention(nn.Module):
    """Projections around a joint attention."""

    def __init__(self, width: int, heads: int, *, bias: bool = True):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.norm = QKNorm(width // heads)
        self.proj = nn.Linear(width, width, bias=bias)

    def qkv_heads(self, x: Tensor) -> list[Tensor]:
        """(B, S, W) -> q, k, v, each (B, S, H, D)."""
        return heads_of(project_split(self.qkv, x, (x.shape[-1],) * 3), self.heads)


class FinalLayer(nn.Module):
    def __init__(self, width: int, outputs: int, modulation: nn.Module, *, bias: bool = True):
        """`modulation` makes of `vec` shift and scale, (B, 2W)."""
        super().__init__()
        self.linear = nn.Linear(width, outputs, bias=bias)
        self.adaLN_modulation = modulation

    def forward(self, x: Tensor, vec: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(vec)[:, None].chunk(2, dim=-1)
        return self.linear(modulate(x, shift, scale))
