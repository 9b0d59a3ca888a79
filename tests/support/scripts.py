"""The four training scripts."""

from sd_scripts.settings.catalog import script_for

SDXL_LORA, SDXL_FULL = script_for("sdxl", "lora"), script_for("sdxl", "full")
FLUX_LORA, FLUX_FULL = script_for("flux", "lora"), script_for("flux", "full")
QWEN_IMAGE_LORA, QWEN_IMAGE_FULL = script_for("qwen_image", "lora"), script_for("qwen_image", "full")
