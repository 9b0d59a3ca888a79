"""SDXL in diffusers: its pipeline around the components of ours."""

from typing import Any

from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline

from sd_scripts.families.common.family import Components


def pipeline_of(components: Components, scheduler: Any = None, **options: Any) -> StableDiffusionXLPipeline:
    return StableDiffusionXLPipeline(
        vae=components.vae,
        text_encoder=components.text_encoders[0],
        text_encoder_2=components.text_encoders[1],
        tokenizer=components.tokenizers[0],
        tokenizer_2=components.tokenizers[1],
        unet=components.denoiser,
        scheduler=scheduler or EulerDiscreteScheduler(),
        **options,
    )
