"""Ranks and learning rates of layers that regular expressions match: network_reg_dims and network_reg_lrs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from sd_scripts.options.networks.layer_rules import Rate
from sd_scripts.options.networks.network_args import NetworkArguments, numbers, whole_numbers

Value = TypeVar("Value")
Matched = list[tuple[re.Pattern[str], Value]]
"""Regular expressions, each with the value of the layers that it matches; the first match counts."""


def matched_ranks(arguments: NetworkArguments) -> Matched[int]:
    return _pairs("network_reg_dims", arguments, lambda key, text: whole_numbers(key, text, 1)[0])


def matched_rates(arguments: NetworkArguments) -> Matched[float]:
    return _pairs("network_reg_lrs", arguments, lambda key, text: numbers(key, text, 1)[0])


def matched_rate(rates: Matched[float], matches: Callable[[re.Pattern[str]], object], default: float) -> Rate | None:
    """Return the learning rate of a layer, or None to leave it out: by the first expression that matches, else
    `default`."""
    for number, (pattern, lr) in enumerate(rates):
        if matches(pattern):
            return Rate(lr, f"_reg_lr_{number}") if lr > 0 else None
    return Rate(default)


def _pairs(key: str, arguments: NetworkArguments, read: Callable[[str, str], Value]) -> Matched[Value]:
    """`regex=value,regex=value`; a regex may contain commas, but not an equals sign."""
    text = arguments.text(key)
    pairs: Matched[Value] = []
    while text:
        match = re.match(r"([^=]+)=([^=,]*)(?:,|$)", text)
        if match is None:
            raise ValueError(f"network_args: {key}={text} is not of the form regex=value,regex=value")
        pattern, value = match[1].strip(), match[2].lstrip()
        try:
            pairs.append((re.compile(pattern), read(key, value)))
        except re.error as error:
            raise ValueError(f"network_args: {key}: {pattern!r} is not a valid regular expression: {error}") from None
        text = text[match.end() :]
    return pairs
