"""The layers that LoRA adapts in FLUX.1, and their names in LoRA files."""

from collections.abc import Callable

from sd_scripts.families.flux.keys import diffusers_modules
from sd_scripts.families.flux.layer_rules import IN_LAYERS, read_flux_rules
from sd_scripts.families.flux.options import FluxNetworkOptions
from sd_scripts.networks.targets import LoraTarget


def _clip_name(path: str) -> str:
    """LoRA files have the prefix `text_model`, which module paths in transformers 5 lack."""
    return _name("lora_te1")("text_model." + path.removeprefix("text_model."))


def _name(prefix: str) -> Callable[[str], str]:
    return lambda path: f"{prefix}_{path.replace('.', '_')}"


TRANSFORMER = LoraTarget(
    classes=("DoubleBlock", "SingleBlock"),
    attention_classes=("SelfAttention",),
    extra_modules=IN_LAYERS,
    name=_name("lora_unet"),
    diffusers_paths=diffusers_modules,
    class_aliases={"DoubleBlock": "DoubleStreamBlock", "SingleBlock": "SingleStreamBlock"},
    options=(FluxNetworkOptions,),
    rules=read_flux_rules,
)
TEXT_ENCODERS = (
    LoraTarget(
        classes=("CLIPAttention", "CLIPMLP"),
        attention_classes=("CLIPAttention",),
        name=_clip_name,
        group="textencoder 1",
    ),
    LoraTarget(
        classes=("T5Attention", "T5DenseGatedActDense"),
        attention_classes=("T5Attention",),
        name=_name("lora_te3"),
        group="textencoder 3",
    ),
)
"""CLIP-L and T5-XXL; the files' te2 is the second encoder of SDXL."""
