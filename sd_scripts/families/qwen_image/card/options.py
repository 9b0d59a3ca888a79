"""Options that only Qwen-Image has: the file of its text encoder, and which of its models is trained."""

from typing import Literal

from sd_scripts.options.spec import OptionGroup, optional, path_option

RECOMMENDED = {"timestep_sampling": "qwen_shift"}
"""Values that train Qwen-Image well; the default is musubi-tuner's."""


class QwenImageModelOptions(OptionGroup, title="Qwen-Image model"):
    """Qwen-Image's text encoder, and the version of the model."""

    text_encoder: str | None = path_option(
        "The Qwen2.5-VL-7B text encoder, such as qwen_2.5_vl_7b.safetensors; bf16, fp16 and fp8 files work. "
        "Not needed for a diffusers folder.",
        label="Text encoder (Qwen2.5-VL)",
        placeholder="/models/qwen_2.5_vl_7b.safetensors",
    )
    model_version: Literal["original", "edit", "edit-2509", "edit-2511", "layered"] | None = optional(
        "Which model is trained, if its file does not specify it. Qwen-Image-2512 is an original, too."
    )
