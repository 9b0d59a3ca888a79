"""A family's keys in configuration files of kohya_ss; a family without such a record is not in them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sd_scripts.options.spec import Remark

Converted = tuple[dict[str, Any], list[Remark]]
"""(option values, remarks)."""


def key_names(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


@dataclass(frozen=True, kw_only=True)
class KohyaTab:
    """Meaning of the keys of a kohya_ss training tab, in all files or in those for one family."""

    same: frozenset[str] = frozenset()
    """Keys of one family that are options of the same name and meaning; other keys are so unless they are dropped."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Old key -> option."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """kohya_ss's default of a missing key, where ours differs."""
    dropped: frozenset[str] = frozenset()
    """Keys that are not an option on their own."""
    cannot: Mapping[str, str] = field(default_factory=dict)
    """Keys of unsupported features, with the remark for them."""
    marks: frozenset[str] = frozenset()
    """Keys that identify the tab that wrote a file."""

    def __or__(self, other: "KohyaTab") -> "KohyaTab":
        return KohyaTab(**{each.name: getattr(self, each.name) | getattr(other, each.name) for each in fields(self)})


@dataclass(frozen=True, kw_only=True)
class KohyaFamily:
    """Keys of kohya_ss that belong to one family."""

    checkboxes: tuple[str, ...] = ()
    """Keys that select the family."""
    prefixes: tuple[str, ...] = ()
    """Prefixes of its keys."""
    tabs: Mapping[str, KohyaTab] = field(default_factory=dict)
    """By the name of our tab."""
    usual: Mapping[str, Any] = field(default_factory=dict)
    """Values of its keys in every file, also in those for other models; the others are off or empty there."""
    unset: Mapping[str, float] = field(default_factory=dict)
    """Key -> number that means unset."""
    text_rates: tuple[str, ...] = ()
    """Keys of the learning rates of the second and further text encoders; without them text_encoder_lr is for all."""
    lora_fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of its LoRA types, with their defaults in kohya_ss."""
    network: Callable[[str, Mapping[str, Any], list[str]], Converted] | None = None
    """(LoRA type, keys of a file, network_args so far) -> network_module, network_args and related options."""


def pairs(fields: Mapping[str, Any], names: tuple[str, ...]) -> list[str]:
    """Return the fields that are set, as network_args: 0 and empty mean unset in kohya_ss."""
    texts = {name: str(fields[name]).replace(" ", "") for name in names}
    return [f"{name}={text}" for name, text in texts.items() if text not in ("", "0", "0.0", "False")]


def standard_instead(kind: str) -> Remark:
    """Return the remark for a LoRA type that is not supported."""
    return Remark("LoRA_type", f"{kind} cannot be trained here; a standard LoRA takes its place")
