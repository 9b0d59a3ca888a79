"""Describe a LoRA file by its header, without torch: kind, ranks, precision, and what it was trained with."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sd_scripts.formats.safetensors_header import Header

DOWN = r"(?:\.lora_down|\.lora_A|_lora\d?\.down|\.lora\.down|\.lora_linear_layer\.down)\.weight$"
KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("DoRA", re.compile(r"\.(?:dora_scale|lora_magnitude_vector(?:\.weight)?)$")),
    ("LoHa", re.compile(r"\.hada_w1_b$")),
    ("LoKr", re.compile(r"\.lokr_w2(?:_b)?$")),
    ("OFT", re.compile(r"\.oft_(?:blocks|diag)$")),
    ("LoRA", re.compile(DOWN)),
)
"""Kind -> the key that each of its layers has."""
FACTOR = re.compile(rf"{DOWN}|\.hada_w1_b$")
"""Tensors whose first size is the rank."""
PRECISIONS = {"F32": "fp32", "F16": "fp16", "BF16": "bf16", "F8_E4M3": "fp8", "F8_E5M2": "fp8", "F64": "fp64"}
TRAINED = (
    ("optimizer", "ss_optimizer", lambda text: text.partition("(")[0].rpartition(".")[2]),
    ("learning rate", "ss_learning_rate", str),
    ("steps", "ss_steps", str),
    ("epochs", "ss_epoch", str),
    ("images", "ss_num_train_images", str),
    ("base model", "ss_sd_model_name", str),
    ("dataset resolution", "ss_resolution", lambda text: text.strip("()").replace(", ", "x")),
)
"""What people ask about a LoRA: (name, entry of the metadata, how it is shown)."""


@dataclass(frozen=True, kw_only=True)
class LoraSummary:
    """What the header of a LoRA file says."""

    kind: str
    """LoRA, LoCon, DoRA, LoHa, LoKr or OFT."""
    layers: int
    ranks: Mapping[int, int]
    """Rank -> number of layers, most frequent first."""
    alpha: str
    """As in the metadata; empty if it is not there."""
    precision: str
    trained: Mapping[str, str]
    """What it was trained with: optimizer, steps, images, ..."""

    @property
    def rank_text(self) -> str:
        """Return `rank 32` or `ranks 4 to 32`."""
        if not self.ranks:
            return ""
        low, high = min(self.ranks), max(self.ranks)
        return f"rank {low}" if low == high else f"ranks {low} to {high}"

    def text(self) -> str:
        """Return it in a few words: "rank 32, alpha 16, 722 layers, fp16, 1,600 steps with AdamW8bit"."""
        parts = [self.rank_text, f"alpha {self.alpha}" if self.alpha else "", f"{self.layers:,} layers", self.precision]
        steps, optimizer = self.trained.get("steps"), self.trained.get("optimizer")
        by = f" with {optimizer}" if optimizer else ""
        parts.append(f"trained {steps} steps{by}" if steps else f"trained{by}" if by else "")
        return ", ".join(part for part in parts if part)


def summarize(header: Header) -> LoraSummary | None:
    """Return what a header says of a LoRA; None if it has no layer of one."""
    counts = {kind: sum(bool(pattern.search(key)) for key in header.shapes) for kind, pattern in KINDS}
    kind = next((kind for kind, count in counts.items() if count), None)
    if kind is None:
        return None
    factors = {key: shape for key, shape in header.shapes.items() if FACTOR.search(key) and shape}
    has_kernel = any(len(shape) == 4 and shape[2:] != (1, 1) for shape in factors.values())
    ranks = Counter(shape[0] for shape in factors.values())
    dtypes = Counter(header.dtypes[key] for key in factors or header.dtypes)
    alpha = header.metadata.get("ss_network_alpha", "")
    return LoraSummary(
        kind="LoCon" if kind == "LoRA" and has_kernel else kind,
        layers=max(counts.values()),
        ranks=dict(ranks.most_common()),
        alpha="" if alpha in ("None", "Dynamic") else alpha.removesuffix(".0"),
        precision=PRECISIONS.get(dtypes.most_common(1)[0][0], ""),
        trained={
            name: shown
            for name, key, show in TRAINED
            if (text := header.metadata.get(key)) and text != "None" and (shown := show(text))
        },
    )
