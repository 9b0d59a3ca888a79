"""The miniature of each family, and settings that train one."""

from pathlib import Path
from typing import Any

from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings

MINIATURES = {
    "sdxl": "miniature",
    "flux": "flux_miniature",
    "flux_kontext": "kontext_miniature",
    "flux2": "flux2_miniature",
    "krea2": "krea2_miniature",
    "chroma": "chroma_miniature",
    "z_image": "z_image_miniature",
    "anima": "anima_miniature",
    "qwen_image": "qwen_image_miniature",
    "qwen_image_edit": "edit_miniature",
    "wan": "wan_miniature",
    "wan_5b": "wan_5b_miniature",
    "hunyuan_video": "hunyuan_video_miniature",
    "framepack": "framepack_miniature",
}
"""Family -> the fixture that makes its miniature."""


def sdxl_settings(model: Path | str | None, **values: Any) -> Settings:
    """Settings of an SDXL LoRA run with this base model."""
    name = None if model is None else str(model)
    return Settings(script_for("sdxl", "lora"), {"pretrained_model_name_or_path": name, **values})
