"""Sample HunyuanVideo clips and images."""

from functools import partial
from typing import cast

from torch import Tensor

from sd_scripts.families.common.encoders.hunyuan_vae import CLIP_VAE
from sd_scripts.families.common.encoders.llama import OUTPUTS, pad_text
from sd_scripts.families.common.flow_sampling import ClipSample, euler_steps, sample_clip, velocity_of_captions
from sd_scripts.families.common.sampling import prompt_captions as common_captions
from sd_scripts.families.hunyuan_video.model import HunyuanVideoTransformer
from sd_scripts.families.hunyuan_video.objective import predict, reads_start
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas
from sd_scripts.options.compile import CompileOptions

SHIFT, SHIFT_OF_FEW, FEW = 7.0, 17.0, 20
"""Shift of the timesteps, and the one for fewer steps than FEW."""
prompt_captions = partial(common_captions, unset=None)


def generate(clip: ClipSample) -> Tensor:
    """Return the latents of a clip or an image. Raises ValueError if the model makes clips from an image and the prompt
    names none."""
    transformer = cast(HunyuanVideoTransformer, clip.components.denoiser)
    prompt = clip.prompt
    shift = prompt.flow_shift or (SHIFT if prompt.steps >= FEW else SHIFT_OF_FEW)
    starts = reads_start(transformer)
    if starts and not prompt.start_image:
        raise ValueError("image_path: SkyReels-V1 I2V makes clips from an image; name one with --i in the prompt")
    noise = clip.noise()
    start = clip.image(prompt.start_image) if starts and prompt.start_image else None
    captions = [pad_text(each, clip.settings[CompileOptions]) for each in OUTPUTS.each(clip.text, clip.device)]

    def predicted(latents: Tensor, t: Tensor, caption: dict[str, Tensor]) -> Tensor:
        return predict(transformer, latents, t, caption, prompt.guidance, start)

    velocity = velocity_of_captions(predicted, captions, prompt.scale, images=1)
    return euler_steps(noise, sampling_sigmas(prompt.steps, shift), velocity, clip.preview)


sample = partial(sample_clip, vae=CLIP_VAE, generate=generate)
