"""The sizes of LoKr's matrices and of joint matrices, without torch: the plan of a run counts them too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MULTIPLE = 8
"""Widths and ranks of a joint matrix are multiples of it, so that its rows begin at multiples of 16 bytes."""

LARGEST_FOLD = 256
"""Rank of the LoRA as which a LoKr computes in its base product, at most; a larger one takes longer than it saves."""


@dataclass(frozen=True, kw_only=True)
class LokrSizes:
    """w1 (p, q) x w2 (c, d) for a weight (p·c, q·d); each may be the product of two matrices of this rank."""

    p: int
    q: int
    c: int
    d: int
    rank: int
    whole_w1: bool
    whole_w2: bool

    @classmethod
    def of(cls, out: int, into: int, rank: int, options: Mapping[str, Any]) -> LokrSizes:
        """Return the sizes for a weight (out, into); `options` come from `read_lokr_sizes`."""
        factor = options.get("factor", -1)
        full = options.get("full", False)
        (p, c), (q, d) = factors(out, factor), factors(into, factor)
        if options.get("unbalanced"):
            p, c = c, p
        return cls(
            **{"p": p, "q": q, "c": c, "d": d, "rank": rank},
            whole_w1=not options.get("both") or rank >= max(p, q) / 2 or full,
            whole_w2=full or rank >= max(c, d) / 2,
        )

    @property
    def folded_rank(self) -> int:
        """Rank of the LoRA as which a Linear computes in its base product; 0 if it does not."""
        rank = self.q * self.rank
        folds = self.whole_w1 and not self.whole_w2 and can_fold(rank, self.q * self.d)
        return rank if folds else 0


def can_fold(rank: int, into: int) -> bool:
    """Return whether a layer with `into` inputs computes as a LoRA of this rank in its base product."""
    return rank <= min(LARGEST_FOLD, into // 2)


def factors(size: int, factor: int) -> tuple[int, int]:
    """Return two factors of a size, the smaller first: `factor` and the rest where that divides it, else the pair with
    the least sum whose smaller one is at most `factor` (-1: any)."""
    if factor > 0 and size % factor == 0:
        return min(factor, size // factor), max(factor, size // factor)
    most = math.isqrt(size) if factor < 0 else min(factor, math.isqrt(size))
    small = max(n for n in range(1, most + 1) if size % n == 0)
    return small, size // small
