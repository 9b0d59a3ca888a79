"""Options that only Qwen-Image has: the file of its text encoder."""

from sd_scripts.options.spec import OptionGroup, path_option

RECOMMENDED = {"timestep_sampling": "qwen_shift"}
"""Values that train Qwen-Image well; the default is that of sd-scripts."""


class QwenImageModelOptions(OptionGroup, title="Qwen-Image model"):
    """Qwen-Image's text encoder."""

    text_encoder: str | None = path_option(
        "The Qwen2.5-VL-7B text encoder, such as qwen_2.5_vl_7b.safetensors; bf16, fp16 and fp8 files work. "
        "Not needed for a diffusers folder.",
        label="Text encoder (Qwen2.5-VL)",
        placeholder="/models/qwen_2.5_vl_7b.safetensors",
    )
