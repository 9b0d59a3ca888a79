"""Inputs of a training step: a batch made ready on the device, with noise, timesteps and text."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from sd_scripts.data.batch import Batch
from sd_scripts.families.family import Tokens
from sd_scripts.training.training_data import TrainingData


def step_inputs(data: TrainingData, batch: Batch, *key: object, timestep: float | None = None) -> dict[str, Tensor]:
    """Load the data of a step: return its tensors on the device. Draws are keyed by the seed and `key`.

    Names of text outputs start with `text.`, tokens for encoders that are trained with `tokens.`: see text_of.
    """
    device, settings = data.context.device, data.context.settings
    latents = batch.latents
    if latents is None:
        assert batch.pixels is not None, "a batch holds pixels or latents"
        latents, *controls = (
            data.family.encode_images(data.components, pixels.to(device, non_blocking=True))
            for pixels in (batch.pixels, *batch.controls)
        )
        batch = replace(batch, controls=tuple(controls))
    latents = latents.to(device, torch.float32, non_blocking=True)
    t = None if timestep is None else torch.full((len(batch),), timestep, device=device, dtype=torch.float32)
    inputs = data.family.step_inputs(batch, latents, settings, data.context.generator(*key), t)
    text = _text_inputs(data, batch)
    return inputs | {name: tensor.to(device, non_blocking=True) for name, tensor in text.items()}


def _text_inputs(data: TrainingData, batch: Batch) -> dict[str, Tensor]:
    """Return the outputs of frozen encoders, from the cache or computed now, and the tokens of trained ones."""
    pad = data.family.text.pad
    if batch.text and not any(data.trains_encoder):
        return {f"text.{name}": tensor for name, tensor in pad(batch.text, data.context.settings).items()}
    tokens = data.family.text.tokenize(data.components, batch.captions, data.context.settings)
    frozen = {encoder: each for encoder, each in tokens.items() if not data.trains_encoder[encoder]}
    trained = {encoder: each for encoder, each in tokens.items() if data.trains_encoder[encoder]}
    text = batch.text
    if frozen and not text:
        for encoder, trains in zip(data.components.text_encoders, data.trains_encoder, strict=True):
            encoder.train(trains and encoder.training)  # T5 has dropout in training mode
        with torch.no_grad():
            text = data.family.text.encode(data.components, frozen)
    text = pad(text, data.context.settings) if text else text
    return {f"text.{name}": tensor for name, tensor in text.items()} | {
        f"tokens.{encoder}.{name}": tensor for encoder, each in trained.items() for name, tensor in each.items()
    }


def text_of(inputs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tokens]:
    """Return the text outputs among a step's inputs, and the tokens of the encoders that are trained."""
    text: dict[str, Tensor] = {}
    tokens: Tokens = {}
    for name, tensor in inputs.items():
        match name.split("."):
            case ["text", output]:
                text[output] = tensor
            case ["tokens", encoder, kind]:
                tokens.setdefault(int(encoder), {})[kind] = tensor
    return text, tokens
