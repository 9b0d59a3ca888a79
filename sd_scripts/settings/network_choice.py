"""The joint choice of network options and network_args, read without torch: the plan of a run reports the same
mistakes as the run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from sd_scripts.families.cards.registry import card_of, is_built_in_network
from sd_scripts.options.networks.layer_rules import Rank, Rules, Warn
from sd_scripts.options.networks.network import DEFAULT_DIM, NetworkOptions
from sd_scripts.options.networks.network_args import NetworkArguments
from sd_scripts.options.networks.network_types import BuiltIn, Preset
from sd_scripts.options.saving import SD_SCRIPTS, LoraFileOptions
from sd_scripts.options.spec import OptionGroup
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.settings import Settings

if TYPE_CHECKING:
    from typing import Self

QUANTIZING = ("fp8_base", "fp8_base_unet", "fp8_compute", "quantize_base")
"""Options with which base weights are stored quantized."""
Read = Callable[[NetworkArguments], Mapping[str, Any]]


def read_norms(arguments: NetworkArguments) -> dict[str, Any]:
    """Read `dora_wd`, `wd_on_output` and `use_tucker`."""
    decomposes = arguments.flag("dora_wd")
    on_output = arguments.flag("wd_on_output", default=True)
    axis = ("out" if on_output else "in") if decomposes else None
    return {"axis": axis, "tucker": arguments.flag("use_tucker")}


def read_lokr_sizes(arguments: NetworkArguments) -> dict[str, Any]:
    """Read `factor`, `decompose_both`, `full_matrix` and `unbalanced_factorization`."""
    return {
        "factor": arguments.factor("factor"),
        "both": arguments.flag("decompose_both"),
        "full": arguments.flag("full_matrix"),
        "unbalanced": arguments.flag("unbalanced_factorization"),
    }


def _read_start(arguments: NetworkArguments) -> dict[str, Any]:
    (start,) = (each for each in each_option(NetworkOptions) if each.name == "lora_init")
    return {"start": arguments.choice(start.name, start.choices, start.default)}


def _read_rotation(arguments: NetworkArguments) -> dict[str, Any]:
    return {
        "constraint": arguments.number("constraint", 0.0),
        "rescaled": arguments.flag("rescaled"),
        "block_count": arguments.whole_number("block_count"),
    }


KINDS: dict[str, Read] = {
    "boft": _read_rotation,
    "dora": read_norms,
    "loha": read_norms,
    "lokr": lambda arguments: {**read_norms(arguments), **read_lokr_sizes(arguments)},
    "lora": _read_start,
    "oft": _read_rotation,
}
"""Adapter kind -> how its own keys of network_args are read, such as LoKr's `factor`; LayerPlan.options has them."""


@dataclass(frozen=True, kw_only=True)
class NetworkChoice:
    """A built-in network, as the options and network_args describe it."""

    kind_name: str
    kind_options: Mapping[str, Any]
    """The kind's values from its own keys of network_args."""
    linear: Rank
    conv: Rank
    stabilized: bool
    """Whether alpha is divided by the root of the rank (rsLoRA)."""
    preset: Preset | None
    """Which layers are adapted; None: the family's, and with a rank for convolutions these too."""
    neuron_dropout: float
    rank_dropout: float
    module_dropout: float
    ggpo: tuple[float, float] | None
    """ggpo_beta and ggpo_sigma."""
    loraplus_unet: float | None
    loraplus_text: float | None
    rules: Rules

    @property
    def adapts_conv(self) -> bool:
        return self.conv.dim > 0 or self.rules.adapts_conv

    @property
    def needs_dense_base(self) -> str:
        """The options with which layers compute with base weights themselves, which then cannot be quantized."""
        axis = self.kind_options.get("axis")
        if axis and self.kind_name == "lokr":
            return "dora_wd with LoKr"
        return "wd_on_output = false" if axis == "in" else ""

    @classmethod
    def read(cls, settings: Settings, warn: Warn) -> Self:
        """Read the settings of a built-in network. Raises ValueError naming the option; warns of unknown keys."""
        card = card_of(settings.script.family)
        options = settings[NetworkOptions]
        chosen = options.built_in
        given = _arguments(options, [settings[group] for group in card.network_groups])
        plus = given.number("loraplus_lr_ratio")
        dropout = given.chance("dropout")
        linear = Rank(options.network_dim or DEFAULT_DIM, options.network_alpha)
        conv_alpha = given.number("conv_alpha", options.network_alpha if chosen.conv else 1.0)
        conv = Rank(_conv_dim(given, linear.dim if chosen.conv else 0), conv_alpha or 0.0)
        beta = given.number("ggpo_beta")
        sigma = given.number("ggpo_sigma")
        if (beta is None) != (sigma is None):
            raise ValueError("network_args: ggpo_beta and ggpo_sigma must be set together; set both or neither")
        kind = _kind(given, chosen)
        choice = cls(
            kind_name=kind,
            kind_options=KINDS[kind](given),
            linear=linear,
            conv=conv,
            stabilized=given.flag("rs_lora"),
            preset=chosen.preset,
            neuron_dropout=dropout if options.network_dropout is None else options.network_dropout,
            rank_dropout=given.chance("rank_dropout"),
            module_dropout=given.chance("module_dropout"),
            ggpo=None if beta is None or sigma is None else (beta, sigma),
            loraplus_unet=given.number("loraplus_unet_lr_ratio", plus) or None,
            loraplus_text=given.number("loraplus_text_encoder_lr_ratio", plus) or None,
            rules=card.network_rules(given, warn),
        )
        for name in given.unread(options.shared_arguments):
            warn(f"{name}: has no effect on adapters of the kind {kind}; leave it unset")
        for sentence in given.unknown():
            warn(sentence)
        return choice


def problems(valid: Settings) -> Iterator[str]:
    """Yield why a built-in network cannot be made or saved, as far as the settings alone show it."""
    options = valid.get(NetworkOptions)
    if not options or not is_built_in_network(options):
        return
    choice = NetworkChoice.read(valid, warn=lambda _: None)
    form = valid[LoraFileOptions].save_as_format
    if form != SD_SCRIPTS and choice.kind_name != "lora":
        yield (
            f"save_as_format: {form} is for plain LoRA, not for adapter={choice.kind_name}; set it to {SD_SCRIPTS}, "
            "which ComfyUI reads too"
        )
    quantizing = (name for name in QUANTIZING if valid.values().get(name) not in (None, False, "none"))
    if choice.needs_dense_base and (name := next(quantizing, "")):
        yield f"{name}: {choice.needs_dense_base} needs the base weights themselves; turn one of the two off"


def remarks(valid: Settings) -> Iterator[str]:
    """Yield which options and keys of network_args have no effect on the network."""
    options = valid.get(NetworkOptions)
    if not options:
        return
    if is_built_in_network(options):
        sentences: list[str] = []
        with contextlib.suppress(ValueError):  # listed with what keeps the run from starting
            NetworkChoice.read(valid, sentences.append)
            yield from sentences
    elif valid[LoraFileOptions].save_as_format != SD_SCRIPTS:
        yield "save_as_format: has no effect on an external network_module"


def _arguments(network: NetworkOptions, own: Iterable[OptionGroup]) -> NetworkArguments:
    """Return network_args merged with the options of `own`, which are also accepted as keys.

    Raises ValueError naming the option if both are set and differ.
    """
    values = dict(network.built_in.arguments)
    set_here = network.shared_arguments
    for filled in own:
        of_group = {field.name: (getattr(filled, field.name), field.default) for field in fields(filled)}  # type: ignore[arg-type]
        set_here |= {name: str(value) for name, (value, default) in of_group.items() if value != default}
    for name, value in set_here.items():
        in_args = values.setdefault(name, value)
        if _plain(in_args) != _plain(value):
            raise ValueError(f"{name}: set to {value} here but to {in_args} in network_args; remove one of them")
    return NetworkArguments(values)


def _kind(given: NetworkArguments, chosen: BuiltIn) -> str:
    """Return the adapter kind; LoRA with trained norms or in Tucker form is one of its own."""
    name = given.choice("adapter", tuple(KINDS), chosen.adapter)
    return "dora" if name == "lora" and (given.flag("dora_wd") or given.flag("use_tucker")) else name


def _conv_dim(given: NetworkArguments, default: int) -> int:
    found = given.whole_number("conv_dim")
    return default if found is None else found


def _plain(text: str) -> str:
    return text.lower().replace(" ", "").strip("'\"[]()")
