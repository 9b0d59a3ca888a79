"""The layers that LoRA adapts in Krea 2, and their names in LoRA files."""

from sd_scripts.families.cards.layer_patterns import lora_name
from sd_scripts.families.krea2.keys import diffusers_modules
from sd_scripts.networks.targets import LoraTarget

TRANSFORMER = LoraTarget(
    classes=("Krea2Transformer",),
    attention_classes=("Attention",),
    name=lora_name,
    diffusers_paths=diffusers_modules,
    together=(("attn.wq", "attn.wk", "attn.wv", "attn.gate"), ("mlp.gate", "mlp.up")),
)
"""All layers, as in the files of musubi-tuner; modulation has none but the one that blocks share."""
TEXT_ENCODERS = (
    LoraTarget(
        classes=("Qwen3Attention", "Qwen3MLP"),
        name=lambda path: f"lora_te1_{path.replace('.', '_')}",
        comfyui=lambda path: f"text_encoders.qwen3vl_4b.transformer.model.{path}",
        group="textencoder 1",
    ),
)
