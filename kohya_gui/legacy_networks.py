"""Convert kohya_ss's LoRA_type and its fields to network_module and network_args, and back."""

from collections.abc import Mapping
from typing import Any

from sd_scripts.options.settings import Remark

LORA_ARGS = (
    "down_lr_weight",
    "mid_lr_weight",
    "up_lr_weight",
    "block_lr_zero_threshold",
    "block_dims",
    "block_alphas",
    "conv_block_dims",
    "conv_block_alphas",
    "rank_dropout",
    "module_dropout",
)
LORA_PLUS_ARGS = ("loraplus_lr_ratio", "loraplus_unet_lr_ratio", "loraplus_text_encoder_lr_ratio")
CONV_ARGS = ("conv_dim", "conv_alpha")

LYCORIS: dict[str, tuple[str, tuple[str, ...]]] = {
    "LyCORIS/BOFT": (
        "boft",
        (*CONV_ARGS, "module_dropout", "use_tucker", "rank_dropout", "rank_dropout_scale", "train_norm"),
    ),
    "LyCORIS/Diag-OFT": (
        "diag-oft",
        (
            *CONV_ARGS,
            *("module_dropout", "use_tucker", "rank_dropout", "rank_dropout_scale", "constrain", "rescaled"),
            "train_norm",
        ),
    ),
    "LyCORIS/DyLoRA": (
        "dylora",
        (*CONV_ARGS, "use_tucker", "unit", "rank_dropout", "module_dropout", "train_norm"),
    ),
    "LyCORIS/GLoRA": (
        "glora",
        (*CONV_ARGS, "use_tucker", "rank_dropout", "module_dropout", "rank_dropout_scale", "train_norm"),
    ),
    "LyCORIS/iA3": ("ia3", (*CONV_ARGS, "train_on_input")),
    "LyCORIS/LoCon": (
        "locon",
        (
            *CONV_ARGS,
            *("use_tucker", "rank_dropout", "bypass_mode", "dora_wd", "module_dropout", "use_scalar"),
            *("rank_dropout_scale", "train_norm"),
        ),
    ),
    "LyCORIS/LoHa": (
        "loha",
        (
            *CONV_ARGS,
            *("use_tucker", "rank_dropout", "bypass_mode", "dora_wd", "module_dropout", "use_scalar"),
            *("rank_dropout_scale", "train_norm"),
        ),
    ),
    "LyCORIS/LoKr": (
        "lokr",
        (
            *CONV_ARGS,
            *("use_tucker", "rank_dropout", "bypass_mode", "dora_wd", "module_dropout", "factor", "use_cp"),
            *("use_scalar", "decompose_both", "rank_dropout_scale", "train_norm"),
        ),
    ),
    "LyCORIS/Native Fine-Tuning": ("full", ("rank_dropout", "module_dropout", "rank_dropout_scale", "train_norm")),
}
"""LoRA type -> lycoris algorithm and the fields it reads."""

LYCORIS_NAMES = {"unit": "block_size", "constrain": "constraint"}
"""Fields that have another name in the lycoris package."""

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

FLUX_LAYERS: dict[str, Any] = {
    **dict.fromkeys(("img_attn_dim", "img_mlp_dim", "img_mod_dim", "single_dim", "single_mod_dim"), ""),
    **dict.fromkeys(("txt_attn_dim", "txt_mlp_dim", "txt_mod_dim", "in_dims"), ""),
    "train_double_block_indices": "all",
    "train_single_block_indices": "all",
    "train_blocks": "all",
    "split_qkv": False,
    "train_t5xxl": False,
}
"""Fields of the type Flux1 that are options of the same name, with their defaults in kohya_ss."""

GGPO: dict[str, Any] = {"train_lora_ggpo": False, "ggpo_sigma": 0.03, "ggpo_beta": 0.01}
"""Fields of the type Flux1 that become network_args if the first is on."""
FLUX_FIELDS = {**FLUX_LAYERS, **GGPO}


def network_from(legacy: Mapping[str, Any], family: str) -> tuple[dict[str, Any], list[Remark]]:
    """Return network_module, network_args and related options, with remarks on what is not supported."""
    fields = {name: default if legacy.get(name) is None else legacy[name] for name, default in FIELDS.items()}
    kind = "LyCORIS/LoCon" if fields["LoRA_type"] == "LoCon" else fields["LoRA_type"]
    plus = _pairs(fields, LORA_PLUS_ARGS)
    if kind in LYCORIS:
        algorithm, names = LYCORIS[kind]
        args = [f"preset={fields['LyCORIS_preset']}"]
        args += [f"{LYCORIS_NAMES.get(name, name)}={fields[name]}" for name in names]
        said = f"{kind} needs the lycoris package, which is not included: pip install lycoris_lora"
        values = {"network_module": "lycoris.kohya", "network_args": [*args, f"algo={algorithm}", *plus]}
        return values, [Remark("LoRA_type", said)]
    if family == "flux":
        return _flux_network(kind, legacy, [*_pairs(fields, ("rank_dropout", "module_dropout")), *plus])
    conv = [f"{name}={fields[name]}" for name in CONV_ARGS] if kind == "Kohya LoCon" else []
    remarks = []
    if kind not in ("Standard", "Kohya LoCon"):
        remarks = [Remark("LoRA_type", f"{kind} cannot be trained here; a standard LoRA takes its place")]
    return {"network_module": "networks.lora", "network_args": [*conv, *_pairs(fields, LORA_ARGS), *plus]}, remarks


def _flux_network(kind: str, legacy: Mapping[str, Any], args: list[str]) -> tuple[dict[str, Any], list[Remark]]:
    """Convert the layer fields, which only counted with the type Flux1; train_blocks had no effect at all."""
    values: dict[str, Any] = {"network_module": "networks.lora_flux", "network_args": args}
    if kind not in ("Flux1", "Standard"):
        return values, [Remark("LoRA_type", f"{kind} cannot be trained here; a standard LoRA takes its place")]
    if kind == "Standard":
        return values, []
    remarks = []
    layers = {name: legacy[name] for name, default in FLUX_LAYERS.items() if legacy.get(name) not in (None, default)}
    values |= {name: _flux_layer(name, value) for name, value in layers.items() if value not in ("", False)}
    if is_on(legacy.get("train_lora_ggpo")):
        ggpo = {name: default if legacy.get(name) is None else legacy[name] for name, default in GGPO.items()}
        values["network_args"] = [*args, *_pairs(ggpo, ("ggpo_sigma", "ggpo_beta"))]
    if "train_blocks" in values:
        remarks.append(Remark("train_blocks", "takes effect here; kohya_ss trained all blocks regardless"))
    if is_on(legacy.get("split_mode")):
        values |= {"train_blocks": "single", "blocks_to_swap": legacy.get("blocks_to_swap") or 18}
        remarks.append(Remark("split_mode", "is now train_blocks = single and blocks_to_swap"))
    return values, remarks


def _flux_layer(name: str, value: Any) -> Any:
    if name in ("split_qkv", "train_t5xxl"):
        return is_on(value)
    return str(value).replace(" ", "").strip("[]()")


def is_on(value: Any) -> bool:
    return value is True or str(value).strip().lower() in ("true", "1")


def _pairs(fields: Mapping[str, Any], names: tuple[str, ...]) -> list[str]:
    """Return the fields that are set: 0 and empty mean unset in kohya_ss."""
    texts = {name: str(fields[name]).replace(" ", "") for name in names}
    return [f"{name}={text}" for name, text in texts.items() if text not in ("", "0", "0.0", "False")]
