"""Options that only HunyuanVideo and FramePack have: the files of their text encoders."""

from sd_scripts.options.spec import OptionGroup, path_option

RECOMMENDED = {"timestep_sampling": "shift", "discrete_flow_shift": 7.0, "guidance_scale": 1.0}
"""Values that train HunyuanVideo well; the defaults are musubi-tuner's."""


class HunyuanModelOptions(OptionGroup, title="HunyuanVideo text encoders"):
    """The text encoders of HunyuanVideo and FramePack."""

    text_encoder1: str | None = path_option(
        "The language model of LLaVA-LLaMA-3-8B, such as llava_llama3_fp16.safetensors; bf16, fp16 and fp8 files work. "
        "Not needed for a diffusers folder.",
        label="Text encoder (LLaVA-LLaMA-3)",
        placeholder="/models/llava_llama3_fp16.safetensors",
    )
    text_encoder2: str | None = path_option(
        "The CLIP-L text encoder, such as clip_l.safetensors. Not needed for a diffusers folder.",
        label="Text encoder 2 (CLIP-L)",
        placeholder="/models/clip_l.safetensors",
    )
