"""Per-layer-type ranks and learning rates for FLUX.1: img_attn_dim, train_blocks, split_qkv and related options."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from sd_scripts.options.networks.layer_rules import Rank, Rate, Rules, Warn
from sd_scripts.options.networks.matched_layers import Matched, matched_ranks, matched_rate, matched_rates
from sd_scripts.options.networks.network_args import NetworkArguments

if TYPE_CHECKING:
    from torch import nn

KINDS = {
    "img_attn_dim": r"double_blocks_\d+_img_attn_",
    "txt_attn_dim": r"double_blocks_\d+_txt_attn_",
    "img_mlp_dim": r"double_blocks_\d+_img_mlp_",
    "txt_mlp_dim": r"double_blocks_\d+_txt_mlp_",
    "img_mod_dim": r"double_blocks_\d+_img_mod_",
    "txt_mod_dim": r"double_blocks_\d+_txt_mod_",
    "single_dim": r"single_blocks_\d+_linear",
    "single_mod_dim": r"single_blocks_\d+_modulation_",
}
"""Option -> layers whose rank it sets."""

IN_LAYERS = ("img_in", "time_in", "vector_in", "guidance_in", "txt_in")
"""The input layers, in the order of in_dims."""

DOUBLE, SINGLE = "double", "single"
INDICES = {DOUBLE: "train_double_block_indices", SINGLE: "train_single_block_indices"}


@dataclass(frozen=True, kw_only=True)
class FluxRules(Rules):
    dims: dict[str, int]
    """Option of KINDS -> rank."""
    in_dims: dict[str, int]
    """Input layer -> rank; 0 leaves it out."""
    blocks: dict[str, frozenset[int] | None]
    """Kind of block -> indices of the trained ones; None means all."""
    split_qkv: bool
    reg_dims: Matched[int]
    """Name pattern and rank; the first match overrides all other ranks."""
    reg_lrs: Matched[float]

    split_option = "split_qkv"

    def check(self, model: nn.Module) -> None:
        for kind, chosen in self.blocks.items():
            count = len(getattr(model, f"{kind}_blocks", ()))
            if count and chosen and max(chosen) >= count:
                raise ValueError(
                    f"{INDICES[kind]}: no such block: {max(chosen)}; this model has {count} {kind} blocks, "
                    f"0 to {count - 1}"
                )

    def rank(self, name: str, conv: bool, default: Rank) -> Rank:
        dim = next((dim for pattern, dim in self.reg_dims if pattern.search(name)), None)
        if dim is None:
            dim = default.dim if name.startswith("lora_te") else self._dim(name, default.dim)
        return default._replace(dim=dim)

    def _dim(self, name: str, default: int) -> int:
        block = re.match(r"lora_unet_(double|single)_blocks_(\d+)_", name)
        if block is None:
            return next((dim for layer, dim in self.in_dims.items() if name.startswith(f"lora_unet_{layer}")), 0)
        chosen = self.blocks[block[1]]
        if chosen is not None and int(block[2]) not in chosen:
            return 0
        return next((dim for kind, dim in self.dims.items() if re.search(KINDS[kind], name)), default)

    def rate(self, name: str, default: float) -> Rate | None:
        return matched_rate(self.reg_lrs, lambda pattern: pattern.search(name), default)

    def split_dims(self, name: str, layer: nn.Module) -> tuple[int, ...]:
        """Return the splits q, k and v of a double block; q, k, v and the MLP input of a single block."""
        if not self.split_qkv:
            return ()
        linear = cast("nn.Linear", layer)  # as all layers of these names are
        if re.search(r"double_blocks_\d+_\w+_attn_qkv$", name):
            return (linear.in_features,) * 3
        if re.search(r"single_blocks_\d+_linear1$", name):
            return (*(linear.in_features,) * 3, linear.out_features - 3 * linear.in_features)
        return ()


def read_flux_rules(arguments: NetworkArguments, warn: Warn) -> FluxRules:
    learn = arguments.choice("train_blocks", ("all", DOUBLE, SINGLE), "all")
    in_dims = arguments.whole_numbers("in_dims", len(IN_LAYERS)) or [0] * len(IN_LAYERS)
    arguments.flag("train_t5xxl")  # read here so that it is known; used where the encoders are chosen
    if "conv_dim" in arguments or "conv_alpha" in arguments:
        warn("network_args: conv_dim and conv_alpha have no effect because FLUX.1 has no convolutions")
    if arguments.flag("verbose"):
        warn("network_args: verbose has no effect; the saved file names every layer with its rank")
    chosen = {kind: block_indices(key, arguments.text(key)) for kind, key in INDICES.items()}
    for kind, numbered in chosen.items():
        if numbered and learn not in ("all", kind):
            warn(f"{INDICES[kind]}: has no effect with train_blocks = {learn}")
    dims = {key: arguments.whole_number(key) for key in KINDS}
    return FluxRules(
        dims={key: dim for key, dim in dims.items() if dim is not None},
        in_dims=dict(zip(IN_LAYERS, in_dims, strict=True)),
        blocks={kind: blocks if learn in ("all", kind) else frozenset() for kind, blocks in chosen.items()},
        split_qkv=arguments.flag("split_qkv"),
        reg_dims=matched_ranks(arguments),
        reg_lrs=matched_rates(arguments),
    )


def block_indices(option: str, text: str | None) -> frozenset[int] | None:
    """Parse `all` (None), `none`, or numbers and inclusive ranges: `0-3,7`. Raises ValueError naming the option."""
    text = (text or "all").strip().lower()
    if text in ("all", "none"):
        return None if text == "all" else frozenset()
    indices: set[int] = set()
    for word in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", word)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(
                f"{option}: {word.strip()!r} is not a number or range; write all, none, or a list such as 0-3,7"
            )
        indices.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(indices)
