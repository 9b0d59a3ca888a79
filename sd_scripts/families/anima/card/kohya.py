"""Anima in the configuration files of kohya_ss."""

from collections.abc import Mapping
from typing import Any

from sd_scripts.families.cards.kohya import Converted, KohyaFamily, KohyaTab, key_names, standard_instead

RENAMED = {
    f"anima_{name}": name
    for name in (
        *("cache_text_encoder_outputs", "cache_text_encoder_outputs_to_disk", "qwen3", "vae", "llm_adapter_path"),
        *("discrete_flow_shift", "timestep_sampling", "sigmoid_scale"),
        *("compile", "compile_backend", "compile_mode", "compile_dynamic", "compile_fullgraph"),
    )
}
RENAMED["anima_unsloth_offload_checkpointing"] = "cpu_offload_checkpointing"
USUAL = {
    **{"anima_discrete_flow_shift": 1.0, "anima_timestep_sampling": "sigmoid", "anima_sigmoid_scale": 1.0},
    **{"anima_qwen3_max_token_length": 512, "anima_t5_max_token_length": 512, "anima_attn_mode": "torch"},
    **{"anima_compile_backend": "inductor", "anima_compile_mode": "default", "anima_compile_dynamic": "auto"},
}
TAB = KohyaTab(same=key_names("blocks_to_swap"), renamed=RENAMED)


def network(kind: str, legacy: Mapping[str, Any], args: list[str]) -> Converted:
    """Return sd-scripts' network for Anima, which the types Anima and Standard are."""
    values: dict[str, Any] = {"network_module": "networks.lora_anima", "network_args": args}
    return values, [] if kind in ("Anima", "Standard") else [standard_instead(kind)]


KOHYA = KohyaFamily(
    checkboxes=("anima_checkbox",),
    prefixes=("anima_",),
    tabs={"lora": TAB, "finetune": TAB},
    usual=USUAL,
    network=network,
)
