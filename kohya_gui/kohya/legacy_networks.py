"""Convert kohya_ss's LoRA_type and its fields to network_module and network_args."""

from collections.abc import Mapping
from typing import Any

from kohya_gui.kohya.legacy_keys import record_of
from sd_scripts.families.cards.kohya import Converted, pairs, standard_instead
from sd_scripts.options.networks.network_types import LYCORIS as LYCORIS_MODULE
from sd_scripts.options.networks.network_types import needs_package, read_items
from sd_scripts.options.spec import Remark

LORA_ARGS = (
    *("down_lr_weight", "mid_lr_weight", "up_lr_weight", "block_lr_zero_threshold", "block_dims", "block_alphas"),
    *("conv_block_dims", "conv_block_alphas", "rank_dropout", "module_dropout"),
)
LORA_PLUS_ARGS = ("loraplus_lr_ratio", "loraplus_unet_lr_ratio", "loraplus_text_encoder_lr_ratio")
CONV_ARGS = ("conv_dim", "conv_alpha")

LYCORIS = {
    "LyCORIS/BOFT": "boft conv_dim conv_alpha module_dropout use_tucker rank_dropout rank_dropout_scale train_norm",
    "LyCORIS/Diag-OFT": "diag-oft conv_dim conv_alpha module_dropout use_tucker rank_dropout rank_dropout_scale "
    "constrain rescaled train_norm",
    "LyCORIS/DyLoRA": "dylora conv_dim conv_alpha use_tucker unit rank_dropout module_dropout train_norm",
    "LyCORIS/GLoRA": "glora conv_dim conv_alpha use_tucker rank_dropout module_dropout rank_dropout_scale train_norm",
    "LyCORIS/iA3": "ia3 conv_dim conv_alpha train_on_input",
    "LyCORIS/LoCon": "locon conv_dim conv_alpha use_tucker rank_dropout bypass_mode dora_wd module_dropout use_scalar "
    "rank_dropout_scale train_norm",
    "LyCORIS/LoHa": "loha conv_dim conv_alpha use_tucker rank_dropout bypass_mode dora_wd module_dropout use_scalar "
    "rank_dropout_scale train_norm",
    "LyCORIS/LoKr": "lokr conv_dim conv_alpha use_tucker rank_dropout bypass_mode dora_wd module_dropout factor "
    "use_cp use_scalar decompose_both rank_dropout_scale train_norm",
    "LyCORIS/Native Fine-Tuning": "full rank_dropout module_dropout rank_dropout_scale train_norm",
}
"""LoRA type -> lycoris algorithm, then the fields it reads."""

KOHYA = {
    "Kohya LoHa": "networks.loha use_tucker rank_dropout module_dropout",
    "Kohya LoKr": "networks.lokr use_tucker factor rank_dropout module_dropout",
}
"""LoRA type -> module of sd-scripts, then the fields it reads in addition to CONV_ARGS."""

LYCORIS_NAMES = {"unit": "block_size", "constrain": "constraint"}
"""Fields that have a different name in the lycoris package."""

FIELDS: dict[str, Any] = {
    "LoRA_type": "Standard",
    "LyCORIS_preset": "full",
    **dict.fromkeys(LORA_ARGS, ""),
    **dict.fromkeys(LORA_PLUS_ARGS, 0),
    "conv_dim": 1,
    "conv_alpha": 1,
    "rank_dropout": 0,
    "module_dropout": 0.0,
    "unit": 1,
    "factor": -1,
    "constrain": 0.0,
    "train_on_input": True,
    **dict.fromkeys(("bypass_mode", "dora_wd", "use_cp", "use_tucker", "use_scalar", "rank_dropout_scale"), False),
    **dict.fromkeys(("rescaled", "train_norm", "decompose_both"), False),
}
"""Fields that become network_args, with their defaults in kohya_ss."""


def network_from(legacy: Mapping[str, Any], family: str) -> Converted:
    """Return network_module, network_args and related options, with remarks on unsupported values."""
    fields = {name: default if legacy.get(name) is None else legacy[name] for name, default in FIELDS.items()}
    kind = "LyCORIS/LoCon" if fields["LoRA_type"] == "LoCon" else fields["LoRA_type"]
    plus = pairs(fields, LORA_PLUS_ARGS)
    if kind in LYCORIS:
        algorithm, *names = LYCORIS[kind].split()
        args = [f"preset={fields['LyCORIS_preset']}"]
        args += [f"{LYCORIS_NAMES.get(name, name)}={fields[name]}" for name in names]
        args += [f"algo={algorithm}", *plus]
        values = {"network_module": LYCORIS_MODULE, "network_args": args}
        missing = needs_package(read_items(args))
        if not missing:
            return values, []
        text = f"{kind} with {missing} needs the lycoris package, which is not included: pip install lycoris_lora"
        return values, [Remark("LoRA_type", text)]
    if kind in KOHYA:
        module, *names = KOHYA[kind].split()
        conv = pairs(fields, CONV_ARGS) if fields["conv_dim"] else []
        args = [*conv, *pairs({**fields, "factor": _chosen_factor(fields)}, tuple(names)), *plus]
        return {"network_module": module, "network_args": args}, []
    if own_network := record_of(family).network:
        return own_network(kind, legacy, [*pairs(fields, ("rank_dropout", "module_dropout")), *plus])
    conv = [f"{name}={fields[name]}" for name in CONV_ARGS] if kind == "Kohya LoCon" else []
    remarks = [] if kind in ("Standard", "Kohya LoCon") else [standard_instead(kind)]
    return {"network_module": "networks.lora", "network_args": [*conv, *pairs(fields, LORA_ARGS), *plus]}, remarks


def _chosen_factor(fields: Mapping[str, Any]) -> Any:
    """Return the factor; -1 is the default of all programs."""
    return "" if str(fields["factor"]) == "-1" else fields["factor"]
