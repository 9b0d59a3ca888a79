"""FLUX.1 in the configuration files of kohya_ss."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sd_scripts.families.cards.kohya import Converted, KohyaFamily, KohyaTab, key_names, pairs, standard_instead
from sd_scripts.families.flux.card.options import FluxNetworkOptions
from sd_scripts.options.spec import Remark, truth

SAME = key_names(
    """
    ae t5xxl_max_token_length apply_t5_attn_mask timestep_sampling discrete_flow_shift model_prediction_type
    guidance_scale blocks_to_swap cpu_offload_checkpointing
    """
)
RENAMED = {
    "flux1_cache_text_encoder_outputs": "cache_text_encoder_outputs",
    "flux1_cache_text_encoder_outputs_to_disk": "cache_text_encoder_outputs_to_disk",
}
DEFAULTS = {"t5xxl_max_token_length": 512}
OLD_SWAP = ("single_blocks_to_swap", "double_blocks_to_swap")
FULL = KohyaTab(
    same=SAME | key_names("blockwise_fused_optimizers mem_eff_save") | {*OLD_SWAP},
    renamed={
        **RENAMED,
        "flux1_clip_l": "clip_l",
        "flux1_t5xxl": "t5xxl",
        "flux_fused_backward_pass": "fused_backward_pass",
    },
    defaults=DEFAULTS,
)
USUAL = {
    **{"model_type": "flux", "discrete_flow_shift": 3.0, "model_prediction_type": "sigma_scaled"},
    **{"timestep_sampling": "sigma", "guidance_scale": 3.5, **DEFAULTS},
}
LAYERS = {option.name: "" if option.default is None else option.default for option in fields(FluxNetworkOptions)}
LAYERS |= dict.fromkeys(("train_double_block_indices", "train_single_block_indices"), "all")
"""Fields of the type Flux1 that are options of the same name, with their defaults in kohya_ss."""
GGPO: dict[str, Any] = {"train_lora_ggpo": False, "ggpo_sigma": 0.03, "ggpo_beta": 0.01}
"""Fields of the type Flux1 that become network_args if the first is on."""


def network(kind: str, legacy: Mapping[str, Any], args: list[str]) -> Converted:
    """Convert the layer fields, which only counted with the type Flux1; train_blocks had no effect at all."""
    values: dict[str, Any] = {"network_module": "networks.lora_flux", "network_args": args}
    if kind == "Flux1 OFT":
        everywhere = ["enable_all_linear=True"] if truth(legacy.get("enable_all_linear")) else []
        return {"network_module": "networks.oft_flux", "network_args": [*everywhere, *args]}, []
    if kind != "Flux1":
        return values, [] if kind == "Standard" else [standard_instead(kind)]
    remarks = []
    layers = {name: legacy[name] for name, default in LAYERS.items() if legacy.get(name) not in (None, default)}
    values |= {name: _layer(name, value) for name, value in layers.items() if value not in ("", False)}
    if truth(legacy.get("train_lora_ggpo")):
        ggpo = {name: default if legacy.get(name) is None else legacy[name] for name, default in GGPO.items()}
        values["network_args"] = [*args, *pairs(ggpo, ("ggpo_sigma", "ggpo_beta"))]
    if "train_blocks" in values:
        remarks.append(Remark("train_blocks", "takes effect here; kohya_ss trained all blocks regardless"))
    if truth(legacy.get("split_mode")):
        values |= {"train_blocks": "single", "blocks_to_swap": legacy.get("blocks_to_swap") or 18}
        remarks.append(Remark("split_mode", "is now train_blocks = single and blocks_to_swap"))
    return values, remarks


def _layer(name: str, value: Any) -> Any:
    return bool(truth(value)) if LAYERS[name] is False else str(value).replace(" ", "").strip("[]()")


KOHYA = KohyaFamily(
    checkboxes=("flux1_checkbox",),
    prefixes=("flux1_",),
    tabs={
        "lora": KohyaTab(
            same=SAME | key_names("clip_l t5xxl model_type fp8_base_unet"),
            renamed=RENAMED,
            defaults=DEFAULTS,
            dropped=key_names("t5xxl_lr mem_eff_save") | {*OLD_SWAP},
            cannot=dict.fromkeys(OLD_SWAP, "no effect, as in sd-scripts; set blocks_to_swap"),
        ),
        "dreambooth": FULL | KohyaTab(marks=key_names("flux1_clip_l")),
        "finetune": FULL,
    },
    usual=USUAL,
    unset={"max_timestep": 1000},  # all timesteps, as models with 1000 of them count
    text_rates=("t5xxl_lr",),
    lora_fields={**LAYERS, **GGPO, "enable_all_linear": False},
    network=network,
)
