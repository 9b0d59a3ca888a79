"""Per-block ranks and learning rates of a U-Net: block_dims, down_lr_weight and related options."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sd_scripts.families.sdxl.card.checks import U_NET_BLOCKS
from sd_scripts.options.networks.layer_rules import Rank, Rate, Rules, Warn
from sd_scripts.options.networks.network_args import NetworkArguments, numbers

COUNTS = DOWN, MIDDLE, UP = 9, 3, 9
FIRST_OF = {"input": 1, "middle": 1 + DOWN, "output": 1 + DOWN + MIDDLE}
"""Blocks of the U-Net: embeddings come before them, the output layers after them."""
LR_WEIGHTS = ("down_lr_weight", "mid_lr_weight", "up_lr_weight")

SHAPES: dict[str, Callable[[float], float]] = {
    "sine": lambda x: math.sin(math.pi / 2 * x),
    "cosine": lambda x: math.sin(math.pi / 2 * (1 - x)),
    "linear": lambda x: x,
    "reverse_linear": lambda x: 1 - x,
    "zeros": lambda x: 0.0,
}
"""Named curves of learning rate weights over the blocks of one direction, from the first (0) to the last (1)."""


def block_of(name: str) -> int | None:
    """Return the number of the U-Net block, 0 to 22, of a layer's name in a LoRA file; None for text encoders.

    `lora_unet_input_blocks_4_1_proj_in` -> 5
    """
    if not name.startswith("lora_unet_"):
        return None
    words = name.removeprefix("lora_unet_").split("_")
    if words[0] in FIRST_OF:
        return FIRST_OF[words[0]] + int(words[2])
    return 0 if words[0] in ("time", "label") else U_NET_BLOCKS - 1


@dataclass(frozen=True, kw_only=True)
class BlockRules(Rules):
    dims: list[int] | None
    alphas: list[float] | None
    conv_dims: list[int] | None
    conv_alphas: list[float] | None
    lr_weights: list[float] | None
    """One factor for each block from down to up, without the first (embeddings) and the last (out)."""

    @property
    def adapts_conv(self) -> bool:  # type: ignore[override]
        return self.conv_dims is not None

    def rank(self, name: str, conv: bool, default: Rank) -> Rank:
        block = block_of(name)
        if block is None:
            return default
        dims, alphas = (self.conv_dims, self.conv_alphas) if conv else (self.dims, self.alphas)
        return Rank(dims[block] if dims else default.dim, alphas[block] if alphas else default.alpha)

    def rate(self, name: str, default: float) -> Rate | None:
        block = block_of(name)
        if block is None or not self.lr_weights:
            return Rate(default)
        weight = self.lr_weights[block - 1] if 1 <= block <= len(self.lr_weights) else 1.0
        return Rate(default * weight, f"_block{block}") if weight > 0 else None


def read_block_rules(arguments: NetworkArguments, warn: Warn) -> BlockRules:
    """Parse the block options."""
    return BlockRules(
        dims=arguments.whole_numbers("block_dims", U_NET_BLOCKS),
        alphas=arguments.numbers("block_alphas", U_NET_BLOCKS),
        conv_dims=arguments.whole_numbers("conv_block_dims", U_NET_BLOCKS),
        conv_alphas=arguments.numbers("conv_block_alphas", U_NET_BLOCKS),
        lr_weights=_lr_weights(arguments, warn),
    )


def _lr_weights(arguments: NetworkArguments, warn: Warn) -> list[float] | None:
    threshold = arguments.number("block_lr_zero_threshold") or 0.0
    curves = [arguments.text(key) for key in LR_WEIGHTS]
    if not any(curves):
        return None
    weights: list[float] = []
    for key, text, count in zip(LR_WEIGHTS, curves, COUNTS, strict=True):
        weights += _lr_curve(key, text, count, warn) if text else [1.0] * count
    return [weight if weight > threshold else 0.0 for weight in weights]


def _lr_curve(key: str, text: str, count: int, warn: Warn) -> list[float]:
    """Parse a list of numbers, padded with 1 or cut as in sd-scripts, or a named curve with a base: `cosine+0.25`."""
    name, _, base = text.partition("+")
    if name.strip() in SHAPES:
        add = numbers(key, base, 1)[0] if base else 0.0
        return [SHAPES[name.strip()](i / max(1, count - 1)) + add for i in range(count)]
    if any(word.strip().isalpha() for word in text.split(",")):
        raise ValueError(f"network_args: {key}={text} is neither numbers nor one of {', '.join(SHAPES)}")
    values = numbers(key, text)
    if len(values) != count:
        what = "the rest are 1" if len(values) < count else "extra values are ignored"
        warn(f"network_args: {key} has {len(values)} values for {count} blocks; {what}")
    return (values + [1.0] * count)[:count]
