"""The layers that LoRA adapts in HunyuanVideo, and their names in LoRA files."""

from sd_scripts.families.cards.layer_patterns import lora_name
from sd_scripts.families.hunyuan_video.keys import diffusers_modules, swaps_halves
from sd_scripts.networks.targets import LoraTarget

TRANSFORMER = LoraTarget(
    classes=("MMDoubleStreamBlock", "MMSingleStreamBlock"),
    folds=("lora",),
    name=lora_name,
    diffusers_paths=diffusers_modules,
    swaps_halves=swaps_halves,
)
"""The card leaves out modulations, as musubi-tuner does."""


def _clip_name(path: str) -> str:
    """LoRA files have the prefix `text_model`, which module paths in transformers 5 lack."""
    return f"lora_te2_text_model_{path.removeprefix('text_model.').replace('.', '_')}"


TEXT_ENCODERS = (
    LoraTarget(
        classes=("LlamaAttention", "LlamaMLP"),
        attention_classes=("LlamaAttention",),
        name=lambda path: f"lora_te1_{path.replace('.', '_')}",
        comfyui=lambda path: f"text_encoders.llama.transformer.model.{path}",
        group="textencoder 1",
    ),
    LoraTarget(
        classes=("CLIPAttention", "CLIPMLP"),
        attention_classes=("CLIPAttention",),
        name=_clip_name,
        comfyui=lambda path: f"text_encoders.clip_l.transformer.text_model.{path.removeprefix('text_model.')}",
        group="textencoder 2",
    ),
)
