"""FramePack's training objective: flow matching of one section of a clip, which sees the frames that are known."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from sd_scripts.data.batch import Batch
from sd_scripts.families.common.encoders.llama import MASK, POOLED, STATES
from sd_scripts.families.common.family import Components, StepInputs
from sd_scripts.families.common.objective import ObjectiveOptions, clip_tokens_of, flow_inputs, flow_loss
from sd_scripts.families.framepack.card.options import FramePackOptions
from sd_scripts.families.framepack.model import Known
from sd_scripts.families.framepack.sections import count_sections, section_of, single_frame, with_controls
from sd_scripts.families.framepack.text import IMAGE

PATCHES = (1, 2, 4)


def step_inputs(
    batch: Batch, latents: Tensor, options: ObjectiveOptions, generator: torch.Generator, timesteps: Tensor | None
) -> dict[str, Tensor]:
    """Return the inputs of flow matching for one section of the clips (B, 16, 1 + 9n, h, w), drawn for the whole batch,
    or for images: noisy, target and what flow_inputs returns besides, places (9,); known_1x, known_2x and known_4x, the
    clean latents that the section sees, and their places_1x, ...; image_embeddings of the start image."""
    framepack = cast(FramePackOptions, options.family)
    sections = count_sections(latents.shape[2])
    if sections:
        number = torch.randint(sections, (1,), generator=generator, device=generator.device).to(latents.device)[0]
        section = section_of(number, sections, latents.device, f1=framepack.f1)
    else:
        section = single_frame(framepack, latents.device)
    predicted, known = section.split(latents)
    inputs = flow_inputs(batch, predicted, options, generator, timesteps, count_tokens=clip_tokens_of)
    inputs |= {"places": section.places, IMAGE: batch.conditioning[IMAGE].to(latents.device, non_blocking=True)}
    for clean, places, by in known:
        inputs |= {f"known_{by}x": clean, f"places_{by}x": places}
    return inputs


def loss(components: Components, inputs: StepInputs, options: ObjectiveOptions) -> Tensor:
    """Return the loss of each sample (B,) float32."""
    model, guidance = inputs.model, options.flow.guidance_scale
    known = [(model[f"known_{by}x"], model[f"places_{by}x"], by) for by in PATCHES if f"known_{by}x" in model]
    if inputs.controls and model["noisy"].shape[2] == 1:
        known = with_controls(known, inputs.controls, cast(FramePackOptions, options.family).clean_places)
    text = {IMAGE: model[IMAGE], **inputs.text}  # a caption's image is the first control image
    timesteps = model["timesteps"]
    velocity = predict(components.denoiser, model["noisy"], model["places"], known, timesteps, text, guidance)
    return flow_loss(velocity, model, options)


def predict(
    transformer: nn.Module,
    noisy: Tensor,
    places: Tensor,
    known: Sequence[Known],
    timesteps: Tensor,
    text: dict[str, Tensor],
    guidance: float,
) -> Tensor:
    """Predict the velocity, noise - clip, of a section, (B, 16, f, h, w) float32.

    noisy (B, 16, f, h, w) at these places (f,), `known` latents, timesteps (B,) float32 in 0..1, text as returned by
    pad_text with image_embeddings, guidance: embedded in the model, which reads 1000 times its value.
    """
    scales = torch.full_like(timesteps, guidance)
    velocity: Tensor = transformer(
        noisy, places, known, text[STATES], text[POOLED], text[IMAGE], timesteps, scales, text.get(MASK)
    )
    return velocity.float()
