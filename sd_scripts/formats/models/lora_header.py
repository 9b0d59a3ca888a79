"""Describe a LoRA file by its header, without torch: kind, ranks, precision, and training settings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sd_scripts.formats.models.lora_keys import (
    ALPHA,
    DOWN,
    NORMS,
    UP,
    LoraKeys,
    group_keys,
    misunderstood,
    without_layers,
)
from sd_scripts.formats.models.peft_header import PeftHeader
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.formats.words import counted, printable

KINDS = (
    ("DoRA", (NORMS,)),
    ("LoHa", ("hada_w1_b",)),
    ("LoKr", ("lokr_w2", "lokr_w2_b")),
    ("OFT", ("oft_blocks",)),
    ("LoRA", (DOWN,)),
)
"""Kind -> tensors; each layer of this kind has one of them."""
FACTORS = (DOWN, "hada_w1_b")
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
    """The header of a LoRA file."""

    kind: str
    """LoRA, LoCon, DoRA, LoHa, LoKr or OFT."""
    layers: int
    ranks: Mapping[int, int]
    """Rank -> number of layers, most frequent first."""
    alpha: str
    """As the header states it; empty if it does not."""
    unread: int
    """Number of tensors that are not read, such as biases and embeddings."""
    precision: str
    trained: Mapping[str, str]
    """Training settings: optimizer, steps, images, ..."""

    @property
    def rank_text(self) -> str:
        """Return `rank 32` or `ranks 4 to 32`."""
        if not self.ranks:
            return ""
        low = min(self.ranks)
        high = max(self.ranks)
        return f"rank {low}" if low == high else f"ranks {low} to {high}"

    def text(self) -> str:
        """Return it in a few words: "rank 32, alpha 16, 722 layers, fp16, 1,600 steps with AdamW8bit"."""
        parts = [self.rank_text, f"alpha {self.alpha}" if self.alpha else "", f"{self.layers:,} layers", self.precision]
        steps = self.trained.get("steps")
        optimizer = self.trained.get("optimizer")
        if steps:
            parts.append(f"trained {steps} steps with {optimizer}" if optimizer else f"trained {steps} steps")
        elif optimizer:
            parts.append(f"trained with {optimizer}")
        parts.append(f"{counted(self.unread, 'tensor')} not read here" if self.unread else "")
        return ", ".join(part for part in parts if part)


def summarize(header: Header) -> LoraSummary | None:
    """Return the LoRA that a header describes; None if it has no LoRA layer."""
    keys = group_keys(header.shapes)
    counts = {kind: sum(not own.keys().isdisjoint(marks) for own in keys.layers.values()) for kind, marks in KINDS}
    kind = next((kind for kind, count in counts.items() if count), None)
    if kind is None:
        return None
    named = [own[ending] for own in keys.layers.values() for ending in FACTORS if ending in own]
    factors = {key: shape for key in named if (shape := header.shapes[key])}
    has_kernel = any(len(shape) == 4 and shape[2:] != (1, 1) for shape in factors.values())
    ranks = Counter(shape[0] for shape in factors.values())
    dtypes = Counter(header.dtypes[key] for key in factors or header.dtypes)
    halves = [own for own in keys.layers.values() if (DOWN in own) != (UP in own)]
    return LoraSummary(
        kind="LoCon" if kind == "LoRA" and has_kernel else kind,
        layers=max(counts.values()),
        ranks=dict(ranks.most_common()),
        alpha=_alpha(header, keys),
        unread=len(keys.others) + sum(map(len, halves)),
        precision=PRECISIONS.get(dtypes.most_common(1)[0][0], ""),
        trained={
            name: shown
            for name, key, show in TRAINED
            if (text := header.metadata.get(key)) and text != "None" and (shown := show(text))
        },
    )


def why_unreadable(header: Header) -> str:
    """Return why a LoRA cannot be read here, as far as its header shows, to follow the file's name; "" if it can."""
    keys = group_keys(header.shapes)
    if why := misunderstood(keys) or without_layers(keys):
        return why
    for layer, own in keys.layers.items():
        for ending, key in own.items():
            if what := _unusable(ending, header.dtypes[key], header.shapes[key]):
                return f"has {what} in {printable(key)}"
        if (DOWN in own) != (UP in own):
            there, missing = (DOWN, UP) if DOWN in own else (UP, DOWN)
            has = f"of the layer {printable(layer)} it has {printable(own[there])}, but not its {missing}"
            return f"is incomplete: {has}; choose a complete file"
    try:
        _stated_alphas(header, keys)
    except ValueError as problem:
        return str(problem)
    return ""


def _unusable(ending: str, dtype: str, shape: tuple[int, ...]) -> str:
    """Return why a tensor's dtype or shape does not suit a layer; "" if it is usable."""
    if ending == ALPHA:
        return "" if math.prod(shape) == 1 else "no single number"
    if dtype in PRECISIONS:
        return "" if all(shape) and shape else f"no matrix, but the shape {shape},"
    if dtype.startswith(("I", "U", "BOOL")):
        return "whole numbers without the scales that make weights of them"
    return f"numbers of the unsupported type {dtype}"


def _stated_alphas(header: Header, keys: LoraKeys) -> set[float]:
    """Return the alphas that PEFT's part of the header states for layers without one. Raises ValueError, to follow the
    file's name, if it cannot be read."""
    peft = PeftHeader(header.metadata, keys.layers)
    stated = {
        peft.alpha(layer, (header.shapes[own[DOWN]] or (0,))[0])
        for layer, own in keys.layers.items()
        if DOWN in own and ALPHA not in own
    }
    return {alpha for alpha in stated if alpha is not None}


def _alpha(header: Header, keys: LoraKeys) -> str:
    """Return alpha as PEFT's part of the header states it for the layers, or as sd-scripts' does."""
    try:
        alphas = _stated_alphas(header, keys)
    except ValueError:  # the reader refuses the file
        return ""
    if alphas:
        return " to ".join(f"{alpha:g}" for alpha in sorted({min(alphas), max(alphas)}))
    alpha = header.metadata.get("ss_network_alpha", "")
    return "" if alpha in ("None", "Dynamic") else alpha.removesuffix(".0")
