"""Anima's adapter from a language model to the text that Cosmos-Predict2 reads; it is in the transformer's file.

Each T5 token of the caption has a learned vector, and attends to the others and to the states of Qwen3. T5 itself is
not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from sd_scripts.library.diffusion.attention import attention
from sd_scripts.library.diffusion.dit_layers import EPS, Rope, heads_of, rope_of
from sd_scripts.library.files.state_dicts import count
from sd_scripts.library.kernels.norm_rope import normed_and_rotated
from sd_scripts.networks.layers import project_together

PREFIX = "llm_adapter."
"""Of its keys in the transformer's file."""
Ropes = tuple[Rope, Rope]
"""Rotary tables of queries and of keys."""


@dataclass(frozen=True, kw_only=True)
class AdapterParams:
    """Sizes of an adapter. The defaults are Anima's."""

    words: int = 32_128
    width: int = 1024
    states_width: int = 1024
    heads: int = 16
    mlp_width: int = 4096
    blocks: int = 6

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> AdapterParams:
        """Read the sizes from an adapter's shapes. Raises KeyError if a needed key is missing."""
        words, width = shapes["embed.weight"]
        return cls(
            words=words,
            width=width,
            states_width=shapes["blocks.0.cross_attn.k_proj.weight"][1],
            heads=width // shapes["blocks.0.self_attn.q_norm.weight"][0],
            mlp_width=shapes["blocks.0.mlp.0.weight"][0],
            blocks=count(shapes, r"blocks\.\d+\.mlp\.0\.weight"),
        )


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    """Attention to the input itself or to a context, of the adapter and of the transformer."""

    def __init__(self, width: int, heads: int, context_width: int, output: str):
        super().__init__()
        self.heads, self.output = heads, output
        self.q_proj = linear(width, width)
        self.q_norm = nn.RMSNorm(width // heads, eps=EPS)
        self.k_proj = linear(context_width, width)
        self.k_norm = nn.RMSNorm(width // heads, eps=EPS)
        self.v_proj = linear(context_width, width)
        self.add_module(output, linear(width, width))

    def forward(
        self, x: Tensor, context: Tensor | None = None, ropes: Ropes | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """x (B, N, W), context (B, T, C), rotary tables of both, mask of the context (B, T) bool -> (B, N, W)."""
        if context is None:
            parts = project_together((self.q_proj, self.k_proj, self.v_proj), x)
        else:
            parts = [self.q_proj(x), *project_together((self.k_proj, self.v_proj), context)]
        q, k, v = heads_of(parts, self.heads)
        q, k = self._rotated(q, k, *ropes) if ropes else (self.q_norm(q), self.k_norm(k))
        out = attention(q, k, v, None if mask is None else mask[:, None, None])
        return getattr(self, self.output)(out)  # type: ignore[no-any-return]

    def _rotated(self, q: Tensor, k: Tensor, rope: Rope, context_rope: Rope) -> tuple[Tensor, Tensor]:
        """Normalise and rotate queries and keys (B, S, H, D)."""
        q_scale, k_scale = neighbouring(self.q_norm.weight), neighbouring(self.k_norm.weight)
        q = normed_and_rotated([neighbouring(q)], [q_scale], rope)
        return q, normed_and_rotated([neighbouring(k)], [k_scale], context_rope)


def neighbouring(x: Tensor) -> Tensor:
    """Reorder the last axis so that the pairs that are rotated, which are in its halves, become neighbours. Products of
    queries and keys stay the same."""
    return x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


class AdapterBlock(nn.Module):
    def __init__(self, params: AdapterParams):
        super().__init__()
        width = params.width
        self.norm_self_attn = nn.RMSNorm(width, eps=EPS)
        self.self_attn = Attention(width, params.heads, width, "o_proj")
        self.norm_cross_attn = nn.RMSNorm(width, eps=EPS)
        self.cross_attn = Attention(width, params.heads, params.states_width, "o_proj")
        self.norm_mlp = nn.RMSNorm(width, eps=EPS)
        self.mlp = nn.Sequential(nn.Linear(width, params.mlp_width), nn.GELU(), nn.Linear(params.mlp_width, width))

    def forward(
        self, x: Tensor, states: Tensor, ids_mask: Tensor, mask: Tensor, rope: Rope, states_rope: Rope
    ) -> Tensor:
        """x (B, T, W), states (B, S, C), masks (B, T) and (B, S) bool -> x."""
        x = x + self.self_attn(self.norm_self_attn(x), None, (rope, rope), ids_mask)
        x = x + self.cross_attn(self.norm_cross_attn(x), states, (rope, states_rope), mask)
        return x + self.mlp(self.norm_mlp(x))


class LLMAdapter(nn.Module):
    def __init__(self, params: AdapterParams):
        super().__init__()
        self.params = params
        self.embed = nn.Embedding(params.words, params.width)
        self.blocks = nn.ModuleList(AdapterBlock(params) for _ in range(params.blocks))
        self.out_proj = nn.Linear(params.width, params.width)
        self.norm = nn.RMSNorm(params.width, eps=EPS)

    def forward(self, states: Tensor, mask: Tensor, ids: Tensor, ids_mask: Tensor) -> Tensor:
        """Return the text that the transformer reads, (B, T, W), 0 after the caption.

        states (B, S, C) of Qwen3, T5's ids (B, T), and where each has text, (B, S) and (B, T) bool: at least in one
        place of every row.
        """
        x = self.embed(ids).to(states.dtype)
        head = self.params.width // self.params.heads
        rope, states_rope = (rope_table(head, length, x.device) for length in (ids.shape[1], states.shape[1]))
        for block in self.blocks:
            x = block(x, states, ids_mask, mask, rope, states_rope)
        return self.norm(self.out_proj(x)) * ids_mask[..., None]


@cache  # recorded graphs read them, so none may be freed
def rope_table(head_width: int, tokens: int, device: torch.device) -> Rope:
    """Return the rotary table of a sequence of this many tokens."""
    return rope_of(torch.arange(tokens, dtype=torch.float64)[:, None], (head_width,), device)
