"""The layers that LoRA adapts in FLUX.2, and their names in LoRA files."""

from sd_scripts.families.cards.layer_patterns import lora_name
from sd_scripts.families.flux2.keys import diffusers_modules, swaps_halves
from sd_scripts.networks.targets import LoraTarget

TRANSFORMER = LoraTarget(
    classes=("DoubleBlock", "SingleBlock"),
    attention_classes=("SelfAttention",),
    name=lora_name,
    diffusers_paths=diffusers_modules,
    swaps_halves=swaps_halves,
)
TEXT_ENCODERS = (
    LoraTarget(
        classes=("Qwen3Attention", "Qwen3MLP"),
        name=lambda path: f"lora_te1_{path.replace('.', '_')}",
        comfyui=lambda path: f"text_encoders.qwen3_4b.transformer.model.{path}",
        group="textencoder 1",
    ),
)
