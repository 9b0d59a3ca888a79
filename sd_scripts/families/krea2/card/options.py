"""Options that only Krea 2 has: the file of its text encoder."""

from sd_scripts.options.spec import OptionGroup, path_option

RECOMMENDED = {"timestep_sampling": "krea2_shift"}
"""Values that train Krea 2 well; the default is musubi-tuner's."""


class Krea2ModelOptions(OptionGroup, title="Krea 2 text encoder"):
    """Krea 2's text encoder."""

    qwen3_vl: str | None = path_option(
        "The Qwen3-VL-4B text encoder, such as qwen3vl_4b_bf16.safetensors; bf16, fp16 and fp8 files work. Not needed "
        "for a diffusers folder.",
        label="Text encoder (Qwen3-VL)",
        placeholder="/models/qwen3vl_4b_bf16.safetensors",
    )
