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

PREFIX = "llm_adapter."
"""Of its keys in the transformer's file."""


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
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> AdapterParams | None:
        """Read the sizes from the shapes of a transformer's file; None if it has no adapter. Raises KeyError if a
        needed key is missing."""
        if f"{PREFIX}embed.weight" not in shapes:
            return None
        words, width = shapes[f"{PREFIX}embed.weight"]
        first = f"{PREFIX}blocks.0"
        return cls(
            words=words,
            width=width,
            states_width=shapes[f"{first}.cross_attn.k_proj.weight"][1],
            heads=width // shapes[f"{first}.self_attn.q_norm.weight"][0],
            mlp_width=shapes[f"{first}.mlp.0.weight"][0],
            blocks=count(shapes, r"llm_adapter\.blocks\.\d+\.mlp\.0\.weight"),
        )


def neighbouring(x: Tensor) -> Tensor:
    """Reorder the last axis (..., D) so that its halves, which Anima's heads are rotated in, become neighbouring pairs.
    Products of queries and keys stay the same."""
    return x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


class AdapterAttention(nn.Module):
    def __init__(self, params: AdapterParams, context_width: int):
        super().__init__()
        width, head = params.width, params.width // params.heads
        self.heads = params.heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.q_norm = nn.RMSNorm(head, eps=EPS)
        self.k_proj = nn.Linear(context_width, width, bias=False)
        self.k_norm = nn.RMSNorm(head, eps=EPS)
        self.v_proj = nn.Linear(context_width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor, rope: Rope, context_rope: Rope) -> Tensor:
        """x (B, T, W), context (B, S, C), mask of the context (B, S) bool -> (B, T, W)."""
        q, k, v = heads_of((self.q_proj(x), self.k_proj(context), self.v_proj(context)), self.heads)
        q = normed_and_rotated([neighbouring(q)], [neighbouring(self.q_norm.weight)], rope)
        k = normed_and_rotated([neighbouring(k)], [neighbouring(self.k_norm.weight)], context_rope)
        return self.o_proj(attention(q, k, v, mask[:, None, None]))


class AdapterBlock(nn.Module):
    def __init__(self, params: AdapterParams):
        super().__init__()
        width = params.width
        self.norm_self_attn = nn.RMSNorm(width, eps=EPS)
        self.self_attn = AdapterAttention(params, width)
        self.norm_cross_attn = nn.RMSNorm(width, eps=EPS)
        self.cross_attn = AdapterAttention(params, params.states_width)
        self.norm_mlp = nn.RMSNorm(width, eps=EPS)
        self.mlp = nn.Sequential(nn.Linear(width, params.mlp_width), nn.GELU(), nn.Linear(params.mlp_width, width))

    def forward(
        self, x: Tensor, states: Tensor, ids_mask: Tensor, mask: Tensor, rope: Rope, states_rope: Rope
    ) -> Tensor:
        """x (B, T, W), states (B, S, C), masks (B, T) and (B, S) bool -> x."""
        normed = self.norm_self_attn(x)
        x = x + self.self_attn(normed, normed, ids_mask, rope, rope)
        x = x + self.cross_attn(self.norm_cross_attn(x), states, mask, rope, states_rope)
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
