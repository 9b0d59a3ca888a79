"""Options that only Wan has: the files of its components, which of its models is trained, and how it samples."""

from typing import Literal

from sd_scripts.options.spec import OptionGroup, option, optional, path_option

RECOMMENDED = {"timestep_sampling": "shift"}
"""Values that train Wan well, with the default discrete_flow_shift = 3; the default here is sd-scripts'."""


class WanModelOptions(OptionGroup, title="Wan model"):
    """Wan's text encoder, and which of its models is trained."""

    t5: str | None = path_option(
        "The UMT5-XXL text encoder: models_t5_umt5-xxl-enc-bf16.pth, or umt5_xxl_fp16.safetensors of ComfyUI; bf16, "
        "fp16 and fp8 files work. Not needed for a diffusers folder.",
        label="Text encoder (UMT5)",
        placeholder="/models/models_t5_umt5-xxl-enc-bf16.pth",
    )
    clip: str | None = path_option(
        "CLIP's image encoder, which Wan 2.1's image-to-video models read: models_clip_open-clip-xlm-roberta-large-vit-"
        "huge-14.pth, or clip_vision_h.safetensors of ComfyUI. Other models have no use for it.",
        label="Image encoder (CLIP)",
        placeholder="/models/clip_vision_h.safetensors",
    )
    task: Literal["t2v-1.3B", "t2v-14B", "t2i-14B", "i2v-14B", "flf2v-14B", "t2v-A14B", "i2v-A14B"] | None = optional(
        "Which model the file contains: samples use its shift and guidance. Wan 2.1 and 2.2 have the same layers, so "
        "their files look alike."
    )


class WanSamplingOptions(OptionGroup, title="Wan samples"):
    """How Wan generates samples."""

    sample_solver: Literal["unipc", "dpm++", "euler", "vanilla"] = option(
        "unipc",
        "Solver of samples: unipc, as in the official code, dpm++ or euler, which musubi-tuner calls vanilla.",
        label="Solver",
    )
