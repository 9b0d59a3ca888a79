"""Alpha of LoRA layers that only the header of a file states, as PEFT, diffusers and SimpleTuner write it.

diffusers stores PEFT's configuration as JSON in one entry, with the component's name before each option:
`{"transformer.r": 4, "transformer.lora_alpha": 16}`. Others store such options as entries of their own, and PEFT itself
as a file next to the weights.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from sd_scripts.formats.documents import parse_json, read_json

ENTRY = "lora_adapter_metadata"
PEFT_FILE, PEFT_CONFIG = "adapter_model.safetensors", "adapter_config.json"
DEFAULT_ALPHA = 8.0
"""PEFT's, where a configuration with a rank has no alpha."""
ALPHAS = ("lora_alpha", "network_alpha", "alpha")
OPTIONS = (*ALPHAS, "alpha_pattern", "use_rslora")
"""Options that files have as entries of their own."""
CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Values of init_lora_weights that change the base weights."""
LONGEST = 300
"""Letters of a pattern, and of a name that is compared with one."""
MOST_REPETITIONS = 3

Config = Mapping[str, Any]


class PeftHeader:
    """The alpha that a LoRA file's header, or PEFT's file next to it, states."""

    def __init__(self, metadata: Mapping[str, str], layers: Collection[str], path: Path | None = None):
        """layers: the names of all layers in the file; path: the file itself, next to which PEFT's own may be.

        Raises ValueError, phrased to follow the file's name, for a configuration that cannot be read.
        """
        self._configs: dict[str, dict[str, Any]] = {}
        for name, value in _entries(metadata, path).items():
            component, _, option = name.rpartition(".")
            self._configs.setdefault(component, {})[option] = value
        if len(self._configs) == 1 and not any(self._component(layer) is not None for layer in layers):
            self._configs = dict(zip(("",), self._configs.values(), strict=True))  # names of another program
        for config in self._configs.values():
            _require_readable(config)

    def alpha(self, layer: str, rank: int) -> float | None:
        """Return the alpha of a layer whose scale is alpha / rank, None if it is not stated.

        Raises ValueError, phrased to follow the file's name, if it is not a number.
        """
        component = self._component(layer)
        if component is None:
            return None
        config = self._configs[component]
        name = layer.removeprefix(f"{component}.")
        stated = _by_pattern(config.get("alpha_pattern"), name)
        if stated is None:
            stated = next((config[each] for each in ALPHAS if config.get(each) is not None), None)
        if stated is None:
            stated = DEFAULT_ALPHA if "r" in config else None
        if stated is None:
            return None
        alpha = _number(stated)
        return alpha * math.sqrt(rank) if _is_true(config.get("use_rslora")) else alpha

    def _component(self, layer: str) -> str | None:
        """Return the component of a layer among those that the header names, None if there is none."""
        fitting = [name for name in self._configs if not name or layer.startswith(f"{name}.")]
        return max(fitting, key=len, default=None)


def without_alpha(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return metadata without what states alpha, for a file whose tensors contain it."""
    return {name: text for name, text in metadata.items() if name != ENTRY and not _is_option(name)}


def _is_option(name: str) -> bool:
    return name.rpartition(".")[2] in OPTIONS


def _entries(metadata: Mapping[str, str], path: Path | None) -> dict[str, Any]:
    """Return all options with the component before their names."""
    found: dict[str, Any] = {}
    if ENTRY in metadata:
        try:
            found = parse_json(metadata[ENTRY])
        except ValueError:
            found = None  # type: ignore[assignment]
        if not isinstance(found, dict):
            raise ValueError(f"has an entry {ENTRY} in its header that is not a JSON object; remove or correct it")
    elif path and path.name == PEFT_FILE and (own_file := path.with_name(PEFT_CONFIG)).is_file():
        try:
            config = read_json(own_file)
        except ValueError as problem:
            raise ValueError(f"has a configuration next to it that cannot be read: {problem}") from None
        found = dict(config) if isinstance(config, dict) else {}
    own = {name: text for name, text in metadata.items() if _is_option(name)}
    return own | found


def _require_readable(config: Config) -> None:
    """Raise ValueError if a configuration is for a different method, or of a LoRA that is not for the base model
    itself."""
    method = str(config.get("peft_type") or "LORA").rpartition(".")[2].upper()
    start = config.get("init_lora_weights")
    if method != "LORA":
        raise ValueError(f"is {method} of PEFT by its header, which is not supported; choose a LoRA")
    if isinstance(start, str) and start.lower().startswith(CHANGES_BASE):
        raise ValueError(
            f"starts from the base weights by {start}, which its trainer has changed; save it as a plain LoRA first "
            "(path_initial_model_for_weight_conversion of PEFT)"
        )


def _by_pattern(patterns: Any, name: str) -> Any:
    """Return the value of the first pattern that is the name of a layer or its end, as PEFT compares them."""
    if isinstance(patterns, str):
        try:
            patterns = json.loads(patterns)
        except (ValueError, RecursionError):
            patterns = None
        if patterns is None:
            raise ValueError("has an alpha_pattern in its header that is not JSON; correct it")
    if not patterns:
        return None
    if not isinstance(patterns, dict):
        raise ValueError("has an alpha_pattern in its header that is not a table; correct it")
    for pattern, value in patterns.items():
        if f".{name}".endswith(f".{pattern}"):
            return value
        if re.escape(pattern) == pattern.replace(".", r"\."):
            continue
        try:
            if not _is_quick(pattern, name):
                raise re.error("it can take very long")
            if re.fullmatch(rf"(.*\.)?({pattern})", name):
                return value
        except re.error as error:
            raise ValueError(f"has {pattern!r} in alpha_pattern, which is not a usable pattern: {error}") from None
    return None


def _is_quick(pattern: str, name: str) -> bool:
    """Return whether a pattern of an unknown file is matched in a short time: without repeated groups, and short."""
    repeated = sum(map(pattern.count, "*+{"))
    return (
        max(len(pattern), len(name)) <= LONGEST and repeated <= MOST_REPETITIONS and not re.search(r"\)[*+{]", pattern)
    )


def _number(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or not number:
        raise ValueError(f"has an alpha of {value!r} in its header, which must be a number other than 0; correct it")
    return number


def _is_true(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value.strip().lower() == "true")
