"""HunyuanVideo's training objective: flow matching, in which the model predicts the velocity from clip to noise."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.data.batch import Batch
from sd_scripts.families.common.encoders.llama import MASK, POOLED, STATES
from sd_scripts.families.common.family import Components, StepInputs
from sd_scripts.families.common.objective import ObjectiveOptions, clip_tokens_of, flow_inputs, flow_loss
from sd_scripts.families.hunyuan_video.model import HunyuanVideoTransformer


def step_inputs(
    batch: Batch, latents: Tensor, options: ObjectiveOptions, generator: torch.Generator, timesteps: Tensor | None
) -> dict[str, Tensor]:
    """Return the inputs of flow matching for latents (B, 16, f, h, w), as flow_inputs does, and start, the latents of
    the first frame (B, 16, 1, h, w), which an image-to-video model reads."""
    inputs = flow_inputs(batch, latents, options, generator, timesteps, count_tokens=clip_tokens_of)
    return inputs | {"start": latents[:, :, :1]}


def loss(components: Components, inputs: StepInputs, options: ObjectiveOptions) -> Tensor:
    """Return the loss of each sample (B,) float32."""
    model, guidance = inputs.model, options.flow.guidance_scale
    noisy, t = model["noisy"], model["timesteps"]
    velocity = predict(components.denoiser, noisy, t, inputs.text, guidance, model["start"])
    return flow_loss(velocity, model, options)


def reads_start(transformer: nn.Module) -> bool:
    """Return whether the model makes clips from an image."""
    return bool(cast(HunyuanVideoTransformer, transformer).params.image_channels)


def predict(
    transformer: nn.Module,
    noisy: Tensor,
    timesteps: Tensor,
    text: dict[str, Tensor],
    guidance: float,
    start: Tensor | None = None,
) -> Tensor:
    """Predict the velocity, noise - clip, (B, 16, f, h, w) float32.

    noisy (B, 16, f, h, w), timesteps (B,) float32 in 0..1, text as returned by pad_text, guidance: embedded in the
    model, which reads 1000 times its value; start (B, 16, 1, h, w): latents of the first frame, which a model that
    makes clips from text alone does not read.
    """
    if reads_start(transformer):
        assert start is not None
        later = noisy.shape[2] - 1
        noisy = torch.cat((noisy, F.pad(start, (0, 0, 0, 0, 0, later))), dim=1)  # (B, 32, f, h, w)
    scales = torch.full_like(timesteps, guidance)
    velocity: Tensor = transformer(noisy, text[STATES], text[POOLED], timesteps, scales, text.get(MASK))
    return velocity.float()
