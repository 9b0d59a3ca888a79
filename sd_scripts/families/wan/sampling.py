"""Sample Wan's clips and images."""

from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor

from sd_scripts.data.caches.caching import LatentLayout
from sd_scripts.families.cards.clip_facts import latent_frames
from sd_scripts.families.common.encoders.causal_vae import decode_clips, encode_clip, encode_clips
from sd_scripts.families.common.encoders.umt5 import OUTPUTS, pad_text
from sd_scripts.families.common.experts import UntrainedExpert
from sd_scripts.families.common.flow_sampling import ClipSample, ClipVAE, Velocity, sample_clip, solver_steps
from sd_scripts.families.common.placing import placement_of
from sd_scripts.families.common.sampling import control_frames, on_device
from sd_scripts.families.common.sampling import prompt_captions as common_captions
from sd_scripts.families.wan.card.options import WanModelOptions, WanSamplingOptions
from sd_scripts.families.wan.card.tasks import NEGATIVE, task_of
from sd_scripts.families.wan.conditions import (
    CONTROL,
    IMAGE_ENCODER,
    conditions_of,
    follows_control,
    params_of,
    start_conditions,
)
from sd_scripts.families.wan.experts import velocity_of
from sd_scripts.families.wan.guidance import StepCounter, guided_velocity, steps_of
from sd_scripts.families.wan.model import WanTransformer
from sd_scripts.library.diffusion.flow_solvers import make_solver
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt

LATENTS = LatentLayout(
    suffix="wan_clip",
    shape=lambda extent: (16, latent_frames(extent.frames), extent.height // 8, extent.width // 8),
)
prompt_captions = partial(common_captions, unset=NEGATIVE)


def generate(clip: ClipSample, *, keeps_start: bool = False) -> Tensor:
    """Return the latents of a clip or an image. With `keeps_start` the latents of the start image are the first
    frame's, at timestep 0."""
    options = clip.settings[WanSamplingOptions]
    prompt = clip.prompt
    shift = prompt.flow_shift or task_of(clip.settings[WanModelOptions].task).shift
    noise = clip.noise()
    conditions = conditions_for(clip)
    captions = [pad_text(each, clip.settings[CompileOptions]) for each in OUTPUTS.each(clip.text, clip.device)]
    step = StepCounter(steps_of(options, prompt.steps))
    guided = partial(guided_velocity, captions=captions, conditions=conditions, step=step, options=options)

    def make(model: WanTransformer, high: bool) -> Velocity:
        own = options.guidance_scale_high_noise if high else None
        return guided(model, scale=prompt.scale if own is None else own)

    velocity = predicted = velocity_of(clip.components, options, placement_of(clip.settings), make)
    start = clip.image(prompt.start_image) if keeps_start and prompt.start_image else None
    if start is not None:
        velocity = keeping_start(velocity, start)
    solver = make_solver(options.sample_solver, prompt.steps, shift)
    latents = solver_steps(noise, solver, step.counting(velocity), lambda so_far: clip.decoded(so_far[:, :, :1]))
    if isinstance(predicted, UntrainedExpert):
        predicted.close()
    return latents if start is None else with_start(latents, start)


CLIP_VAE = ClipVAE(shape=LATENTS.shape, encode=encode_clips, decode=decode_clips)
sample = partial(sample_clip, vae=CLIP_VAE, generate=generate)


def with_start(latents: Tensor, start: Tensor) -> Tensor:
    """Return latents (1, C, f, h, w) whose first frame is `start`, (1, C, 1, h, w)."""
    return torch.cat((start, latents[:, :, 1:]), dim=2)


def keeping_start(velocity: Velocity, start: Tensor) -> Velocity:
    """Return a function that predicts the velocity of the frames after `start`, which has no noise."""

    def predicted(latents: Tensor, t: Tensor) -> Tensor:
        times = t.repeat(1, latents.shape[2])
        times[:, 0] = 0
        return velocity(with_start(latents, start), times)

    return predicted


def conditions_for(clip: ClipSample) -> dict[str, Tensor]:
    """Return the conditions of an image-to-video or Fun-Control model from the prompt's images and control clip. Raises
    ValueError if the prompt names none."""
    components, prompt = clip.components, clip.prompt
    params = params_of(components)
    if params.in_channels == params.channels:
        return {}
    follows = follows_control(params)
    sees = bool(params.image_width and (prompt.start_image or not follows))
    _check_files(prompt, follows=follows, lacks_encoder=sees and IMAGE_ENCODER not in components.sources)
    loads = sees and not components.is_loaded(IMAGE_ENCODER)
    if loads:
        components.load(IMAGE_ENCODER)
    used = [components.vae, *([components.others[IMAGE_ENCODER]] if sees else [])]
    with ExitStack() as stack:
        for module in used:
            stack.enter_context(on_device(module, clip.device))
        first, last = (
            clip.frame(name).to(clip.device) if name else None for name in (prompt.start_image, prompt.end_image)
        )
        if prompt.control_clip and follows:
            control = control_frames(prompt.control_clip, clip.extent, clip.fps).to(clip.device)
            conditions = {CONTROL: encode_clip(components.vae, control)}
            conditions |= {} if first is None else start_conditions(components, first)
        else:
            conditions = conditions_of(components, first, clip.extent.frames, last)
    if loads:
        components.free(IMAGE_ENCODER)
    return conditions


def _check_files(prompt: SamplePrompt, *, follows: bool, lacks_encoder: bool) -> None:
    """Raise ValueError if a prompt does not name the files that the model reads."""
    if follows and not prompt.control_clip:
        raise ValueError("control_video_path: this Wan model follows a control clip; name one with --cn in the prompt")
    if not follows and not (prompt.start_image or prompt.end_image):
        raise ValueError("image_path: this Wan model makes clips from an image; name one with --i in the prompt")
    if lacks_encoder:
        raise ValueError("clip: not set, but the start image is read by CLIP's image encoder; set it to its file")
