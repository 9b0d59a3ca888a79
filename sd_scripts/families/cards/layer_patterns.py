"""Which layers of a transformer a LoRA adapts: exclude_patterns and include_patterns, as in musubi-tuner.

And at which ranks and learning rates: network_reg_dims and network_reg_lrs, as in sd-scripts for Anima.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sd_scripts.options.networks.layer_rules import Rank, Rate, Rules, Warn
from sd_scripts.options.networks.matched_layers import Matched, matched_ranks, matched_rate, matched_rates
from sd_scripts.options.networks.network_args import NetworkArguments

if TYPE_CHECKING:
    from torch import nn

EXCLUDE, INCLUDE = "exclude_patterns", "include_patterns"
Patterns = tuple[re.Pattern[str], ...]


def lora_name(path: str) -> str:
    """Return a layer's name in LoRA files: `transformer_blocks.0.attn.to_q` -> `lora_unet_transformer_blocks_0_...`."""
    return f"lora_unet_{path.replace('.', '_')}"


@dataclass(frozen=True, kw_only=True)
class PatternRules(Rules):
    """A layer of the transformer is adapted unless a pattern excludes it; one that includes it counts more."""

    exclude: Patterns
    include: Patterns
    ranks: Matched[int]
    rates: Matched[float]
    paths: dict[str, str] = field(default_factory=dict)
    """Name in LoRA files -> path of the layer, which the patterns match whole."""

    def check(self, model: nn.Module) -> None:
        self.paths.update((lora_name(path), path) for path, _ in model.named_modules())

    def rank(self, name: str, conv: bool, default: Rank) -> Rank:
        path = self.paths.get(name)
        if path is None:
            return default
        if _matches(self.exclude, path) and not _matches(self.include, path):
            return default._replace(dim=0)
        return default._replace(dim=next((dim for pattern, dim in self.ranks if pattern.fullmatch(path)), default.dim))

    def rate(self, name: str, default: float) -> Rate | None:
        path = self.paths.get(name, "")
        return matched_rate(self.rates, lambda pattern: pattern.fullmatch(path), default)


def _matches(patterns: Patterns, path: str) -> bool:
    return any(pattern.fullmatch(path) for pattern in patterns)


def read_rules(arguments: NetworkArguments, warn: Warn, *, title: str, excluded: str = "") -> PatternRules:
    """Read the patterns of a family with this title. Layers that the regular expression `excluded` matches are adapted
    only if they are included."""
    if "conv_dim" in arguments or "conv_alpha" in arguments:
        warn(f"network_args: conv_dim and conv_alpha have no effect because {title} has no convolutions")
    if arguments.flag("verbose"):
        warn("network_args: verbose has no effect; the saved file names every layer with its rank")
    always = (re.compile(excluded),) if excluded else ()
    rules = PatternRules(
        exclude=always + _patterns(EXCLUDE, arguments),
        include=_patterns(INCLUDE, arguments),
        ranks=matched_ranks(arguments),
        rates=matched_rates(arguments),
    )
    if rules.include and not rules.exclude:
        warn(f"network_args: {INCLUDE} has no effect without {EXCLUDE}, whose exceptions it lists")
    return rules


def _patterns(key: str, arguments: NetworkArguments) -> Patterns:
    """Read one regular expression, or a list of them as in Python: `['.*_mod.*', '.*mlp.*']`."""
    text = arguments.text(key)
    if not text:
        return ()
    try:
        expressions = ast.literal_eval(text) if text.startswith("[") else [text]
        return tuple(re.compile(pattern) for pattern in expressions)
    except (SyntaxError, ValueError, TypeError, re.error):
        raise ValueError(
            f"network_args: {key}={text} is not a list of regular expressions, such as ['.*_mod.*']"
        ) from None
