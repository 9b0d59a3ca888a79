"""The kinds of adapters that users choose: by network_type, or by names that other programs have for them.

These are sd-scripts' modules (networks.lora, networks.loha, networks.lokr, networks.oft) and the algorithms of LyCORIS,
which is chosen by network_module = lycoris.kohya and algo=lokr in network_args. Its algorithms that are built in are
trained by the built-in code, whether or not its package is installed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sd_scripts.options.networks.network_args import LARGEST_RANK
from sd_scripts.options.spec import truth

LYCORIS = "lycoris.kohya"


@dataclass(frozen=True, kw_only=True)
class NetworkType:
    """One value of network_type."""

    title: str
    adapter: str
    """The adapter kind that computes it (sd_scripts/networks/adapters)."""
    algo: str
    """Its name in LyCORIS."""
    always: Mapping[str, str] = field(default_factory=dict)
    """Keys of network_args that it implies."""
    conv: bool = False
    """Whether convolutions are adapted too if conv_dim is unset."""

    @property
    def plain(self) -> bool:
        """Whether networks.lora of sd-scripts trains the same."""
        return self.adapter == "lora" and not self.always


NETWORK_TYPES = {
    "lora": NetworkType(title="LoRA", adapter="lora", algo="lora"),
    "locon": NetworkType(title="LoCon", adapter="lora", algo="locon", conv=True),
    "dora": NetworkType(title="DoRA", adapter="lora", algo="lora", always={"dora_wd": "True"}),
    "loha": NetworkType(title="LoHa", adapter="loha", algo="loha"),
    "lokr": NetworkType(title="LoKr", adapter="lokr", algo="lokr"),
    "oft": NetworkType(title="OFT", adapter="oft", algo="diag-oft"),
    "boft": NetworkType(title="BOFT", adapter="boft", algo="boft"),
}
ALGORITHMS = {each.algo: each.adapter for each in NETWORK_TYPES.values()}
MODULE = re.compile(r"networks\.(?:(?P<loha>loha)|(?P<lokr>lokr)|(?P<oft>oft))(?:_\w+)?")
"""Modules of sd-scripts, besides networks.lora, that are built in for every family, by adapter kind."""

SHARED = (
    *("conv_dim", "conv_alpha", "rank_dropout", "module_dropout", "rs_lora", "dora_wd", "wd_on_output", "use_tucker"),
    *("factor", "decompose_both", "full_matrix", "constraint", "rescaled", "lora_init"),
)
"""Options of the network that are also keys of network_args, as in LyCORIS and sd-scripts."""

RENAMED = {"use_cp": "use_tucker", "use_conv_cp": "use_tucker", "constrain": "constraint"}
"""Older names in LyCORIS."""
ONLY_IN_PACKAGE = ("train_norm", "use_scalar")
"""Keys of LyCORIS that, when on, need its package."""
FLAGS = ("use_tucker", "dora_wd", "decompose_both", "full_matrix", "unbalanced_factorization", "rescaled", "rs_lora")
"""Keys of LyCORIS that are off unless they are on; the page of kohya_ss writes those that are off too."""
MEANINGLESS = ("algo", "preset", "bypass_mode", "rank_dropout_scale", "disable_conv_cp", "block_size", "train_on_input")
"""Keys of LyCORIS that only choose how it computes, or that these algorithms ignore."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Which layers LyCORIS adapts under a name."""

    conv: bool = False
    """Convolutions with a kernel above 1x1, at network_dim unless conv_dim is set."""
    inside: tuple[str, ...] = ("blocks",)
    """Kinds of modules whose layers are adapted: `blocks`, `attention`, `convolutions`."""
    text_encoders: bool = True


PRESETS = {
    "full": Preset(conv=True, inside=("blocks", "convolutions")),
    "full-lin": Preset(inside=("blocks", "convolutions")),
    "attn-mlp": Preset(),
    "attn-only": Preset(inside=("attention",)),
    "unet-only": Preset(conv=True, inside=("blocks", "convolutions"), text_encoders=False),
    "unet-transformer-only": Preset(text_encoders=False),
    "unet-convblock-only": Preset(conv=True, inside=("convolutions",), text_encoders=False),
}


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    """A built-in adapter, as settings choose it."""

    adapter: str
    arguments: Mapping[str, str]
    """network_args in our terms."""
    conv: bool = False
    """Whether convolutions are adapted at network_dim if conv_dim is unset."""
    preset: Preset | None = None
    """None: what conv_dim decides."""


def read_items(items: list[str]) -> dict[str, str]:
    """Return network_args by key; items other than key=value are left out."""
    pairs = (item.partition("=") for item in items if "=" in item)
    return {key.strip(): value.strip() for key, _, value in pairs}


def built_in(module: str, arguments: Mapping[str, str], network_type: str | None, dim: int, alpha: float) -> BuiltIn:
    """Return the adapter that these settings choose; `module` must pass `is_built_in`, or be a family's own."""
    if module == LYCORIS:
        return _of_lycoris(arguments)
    if found := MODULE.fullmatch(module):
        if found.lastgroup == "oft":
            return _oft_of_sd_scripts(arguments, dim, alpha)
        return BuiltIn(adapter=str(found.lastgroup), arguments=_bounded(str(found.lastgroup), arguments))
    chosen = NETWORK_TYPES.get(network_type or "")
    if chosen is None:
        adapter = arguments.get("adapter", "lora").strip("'\"").lower()
        implied = NETWORK_TYPES[adapter].always if adapter in NETWORK_TYPES else {}
        adapter = "lora" if adapter == "dora" else adapter
        all_arguments = {**implied, **arguments}
        return BuiltIn(adapter=adapter, arguments=_bounded(adapter, all_arguments))
    own = _bounded(chosen.adapter, {**arguments, **chosen.always})
    return BuiltIn(adapter=chosen.adapter, arguments=own, conv=chosen.conv)


def _bounded(adapter: str, arguments: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments with a conv_dim that LoKr's users write for whole matrices, such as 100000, in bounds."""
    conv_dim = arguments.get("conv_dim", "")
    if adapter == "lokr" and conv_dim.isdecimal() and int(conv_dim) > LARGEST_RANK:
        return {**arguments, "conv_dim": str(LARGEST_RANK)}
    return dict(arguments)


def is_built_in(module: str, arguments: Mapping[str, str]) -> bool:
    """Return whether a module of sd-scripts or LyCORIS is trained by the built-in code."""
    if module != LYCORIS:
        return MODULE.fullmatch(module) is not None
    known = _algorithm(arguments) in ALGORITHMS and arguments.get("preset", "full") in PRESETS
    return known and not any(truth(arguments.get(key, "False")) for key in ONLY_IN_PACKAGE)


def needs_package(arguments: Mapping[str, str]) -> str:
    """Return the argument, as written, for which LyCORIS needs its package."""
    if (algorithm := _algorithm(arguments)) not in ALGORITHMS:
        return f"algo={algorithm}"
    if (preset := arguments.get("preset", "full")) not in PRESETS:
        return f"preset={preset}"
    return next((f"{key}={arguments[key]}" for key in ONLY_IN_PACKAGE if truth(arguments.get(key, ""))), "")


def _algorithm(arguments: Mapping[str, str]) -> str:
    return (arguments.get("algo") or "lora").strip("'\"").lower()


def _of_lycoris(arguments: Mapping[str, str]) -> BuiltIn:
    adapter = ALGORITHMS[_algorithm(arguments)]
    preset = PRESETS[arguments.get("preset", "full")]
    named = {
        RENAMED.get(key, key): value
        for key, value in arguments.items()
        if key not in (*MEANINGLESS, *ONLY_IN_PACKAGE) and not (key in RENAMED and value in ("False", "0", "0.0"))
    }
    left = {key: value for key, value in named.items() if key not in FLAGS or truth(value) is not False}
    return BuiltIn(adapter=adapter, arguments=_bounded(adapter, left), conv=preset.conv, preset=preset)


def _oft_of_sd_scripts(arguments: Mapping[str, str], dim: int, alpha: float) -> BuiltIn:
    """Read networks.oft, whose network_dim counts blocks and whose network_alpha is the constraint."""
    everywhere = truth(arguments.get("enable_all_linear", "False"))
    own = {key: value for key, value in arguments.items() if key not in ("enable_all_linear", "enable_conv")}
    if truth(arguments.get("enable_conv", "False")):
        everywhere = True
        own.setdefault("conv_dim", str(dim))
    own = {"block_count": str(dim), "constraint": str(alpha), **own}
    return BuiltIn(adapter="oft", arguments=own, preset=None if everywhere else PRESETS["attn-only"])
