"""The layers that LoRA adapts in text encoders, and their names in LoRA files."""

from sd_scripts.networks.targets import LoraTarget


def encoder_target(
    number: int, comfyui: str, *classes: str, prefix: str = "", attention: tuple[str, ...] = ()
) -> LoraTarget:
    """Return the target of a text encoder with this number, whose adapted layers are in modules of these `classes`,
    some of them `attention`. `comfyui`: what ComfyUI puts before the path of a layer; `prefix`: the beginning of names,
    by default `lora_te` and the number."""
    start = prefix or f"lora_te{number}"
    return LoraTarget(
        classes=classes,
        attention_classes=attention,
        name=lambda path: f"{start}_{path.replace('.', '_')}",
        comfyui=lambda path: f"text_encoders.{comfyui}.{path}",
        group=f"textencoder {number}",
    )


def clip_l_target(number: int) -> LoraTarget:
    """Return the target of CLIP-L. Files have the prefix `text_model`, which module paths in transformers 5 lack."""
    return LoraTarget(
        classes=("CLIPAttention", "CLIPMLP"),
        attention_classes=("CLIPAttention",),
        name=lambda path: f"lora_te{number}_text_model_{path.removeprefix('text_model.').replace('.', '_')}",
        comfyui=lambda path: f"text_encoders.clip_l.transformer.text_model.{path.removeprefix('text_model.')}",
        group=f"textencoder {number}",
    )
