"""Options that only Wan has: the files of its components, which of its models is trained, and how it samples."""

import re
from typing import Literal

from sd_scripts.options.spec import Findings, OptionGroup, option, optional, path_option

RECOMMENDED = {"timestep_sampling": "shift", "discrete_flow_shift": 3.0}
"""Values that train Wan well; the defaults are musubi-tuner's."""


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
    dit_high_noise: str | None = path_option(
        "Wan 2.2's model for high noise, where the model is the one for low noise. An adapter is trained on both, each "
        "at its own noise levels, or on one of them if min_timestep and max_timestep leave no more. Samples use both.",
        label="High-noise model",
        placeholder="/models/wan2.2_t2v_high_noise_14B_fp16.safetensors",
    )
    task: (
        Literal[
            "t2v-1.3B",
            "t2v-14B",
            "t2i-14B",
            "i2v-14B",
            "flf2v-14B",
            "t2v-A14B",
            "i2v-A14B",
            "t2v-1.3B-FC",
            "t2v-14B-FC",
            "i2v-14B-FC",
        ]
        | None
    ) = optional(
        "Which model the file contains: samples use its shift and guidance. Wan 2.1 and 2.2 have the same layers, so "
        "their files look alike. i2v-14B-FC trains Fun-Control with the first frame in addition to the control clip."
    )


class WanSamplingOptions(OptionGroup, title="Wan samples"):
    """How Wan generates samples."""

    timestep_boundary: float | None = optional(
        "From which noise level on dit_high_noise is used: 875 of 1000, or 0.875. Default: 875 for text to video, 900 "
        "for image to video.",
        within=(0.001, 1000.0),
    )
    guidance_scale_high_noise: float | None = optional(
        "Guidance of dit_high_noise. Default: the guidance of the sample.",
        label="Guidance at high noise",
        within=(0, 100),
    )
    cfg_skip_mode: Literal["none", "early", "late", "middle", "early_late", "alternate"] = option(
        "none",
        "Generate faster: leave the negative prompt out at these steps, as far as cfg_apply_ratio says.",
        label="Steps without guidance",
    )
    cfg_apply_ratio: float | None = optional(
        "Share of the steps at which the negative prompt is read, with cfg_skip_mode. Default: all.", within=(0.0, 1.0)
    )
    slg_mode: Literal["original", "uncond"] | None = optional(
        "Skip-layer guidance: away from what the model predicts without slg_layers. original adds a third prediction "
        "to each step, uncond leaves the layers out where the negative prompt is read.",
        label="Skip-layer guidance",
    )
    slg_layers: str | None = optional("Numbers of the blocks that skip-layer guidance leaves out, such as 9,10.")
    slg_scale: float = option(3.0, "Strength of original skip-layer guidance.", within=(0.0, 100.0))
    slg_start: float = option(0.0, "Share of the steps before skip-layer guidance starts.", within=(0.0, 1.0))
    slg_end: float = option(0.3, "Share of the steps after which skip-layer guidance ends.", within=(0.0, 1.0))
    sample_solver: Literal["unipc", "dpm++", "euler", "vanilla"] = option(
        "unipc",
        "Solver of samples: unipc, as in the official code, dpm++ or euler, which musubi-tuner calls vanilla.",
        label="Solver",
    )

    def check(self) -> Findings:
        if self.slg_mode and not self.slg_layers:
            yield "slg_layers", "not set, but slg_mode needs the numbers of blocks, such as 9,10"
        if self.slg_layers and not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", self.slg_layers):
            yield "slg_layers", f"{self.slg_layers!r} is not a list of numbers, such as 9,10"
        if self.cfg_skip_mode != "none" and self.cfg_apply_ratio is None:
            yield "cfg_apply_ratio", "not set, but cfg_skip_mode needs it, such as 0.5"


def layers_of(text: str | None) -> frozenset[int]:
    """Return the numbers of a list such as 9,10."""
    return frozenset(int(number) for number in (text or "").split(",") if number.strip())
