"""Inputs of a training step, a batch made ready on the device with noise, timesteps and text; and the loss of them."""

from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sd_scripts.data.batch import Batch
from sd_scripts.families.common.family import StepInputs, TextOptions, Tokens
from sd_scripts.training.training_data import TrainingData


def step_inputs(data: TrainingData, batch: Batch, *key: object, timestep: float | None = None) -> StepInputs:
    """Load the data of a micro-step onto the device. Draws are keyed by the seed and `key`."""
    device = data.context.device
    options = data.objective
    batch = batch if batch.pixels is None else _encoded(data, batch, batch.pixels.to(device, non_blocking=True))
    assert batch.latents is not None, "a batch contains pixels or latents"
    latents = batch.latents.to(device, torch.float32, non_blocking=True)
    t = None if timestep is None else torch.full((len(batch),), timestep, device=device, dtype=torch.float32)
    generator = data.context.generator(*key)
    if batch.high_noise is not None:
        t = data.family.high_noise(options).timesteps(len(batch), batch.bucket, generator, high=batch.high_noise)
    if experts := data.components.experts:
        if timestep is None:
            t = experts.draw(latents, options, generator, data.context.number("experts", data.context.rank, *key))
        else:
            experts.use_for(timestep)
    model = data.family.step_inputs(batch, latents, options, generator, t)
    controls = tuple(control.to(device, torch.float32, non_blocking=True) for control in batch.controls)
    text, tokens = pytree.tree_map(lambda tensor: tensor.to(device, non_blocking=True), _text_inputs(data, batch))
    return StepInputs(model=model, text=text, tokens=tokens, controls=controls)


def step_loss(data: TrainingData, inputs: StepInputs, *, autocast: bool = False) -> Tensor:
    """Return the losses (B,) of one micro-batch; trained text encoders encode the captions first. `autocast`: to the
    dtype that the model computes in."""
    context = data.context
    components = data.components
    casts = autocast and context.dtype != torch.float32
    with torch.autocast(context.device.type, context.dtype) if casts else nullcontext():
        if inputs.tokens:
            trained = data.family.text.encode(components, inputs.tokens)
            inputs = replace(inputs, text=inputs.text | trained)
        return data.family.loss(components, inputs, data.objective)


def _encoded(data: TrainingData, batch: Batch, pixels: Tensor) -> Batch:
    """Return a batch with the latents of its pixels and control images, and with the family's conditions."""
    family, components = data.family, data.components
    controls = (control.to(pixels.device, non_blocking=True) for control in batch.controls)
    batch = replace(
        batch,
        latents=family.encode_images(components, pixels),
        controls=tuple(family.encode_images(components, control) for control in controls),
    )
    if not (family.conditions and data.condition_names):
        return batch
    with torch.no_grad():
        conditions = family.conditions.encode(components, pixels)
    return replace(batch, conditioning=batch.conditioning | conditions)


def _text_inputs(data: TrainingData, batch: Batch) -> tuple[dict[str, Tensor], Tokens]:
    """Return the outputs of frozen encoders, from the cache or computed now, and the tokens of trained ones."""
    pad = data.family.text.pad
    options = TextOptions.of(data.context.settings)
    if batch.text and not any(data.trains_encoder):
        return pad(batch.text, options.compiling), {}
    tokens = data.family.text.tokenize(data.components, batch.captions, options)
    frozen = {encoder: each for encoder, each in tokens.items() if not data.trains_encoder[encoder]}
    trained = {encoder: each for encoder, each in tokens.items() if data.trains_encoder[encoder]}
    text = batch.text
    if frozen and not text:
        for encoder, trains in zip(data.components.text_encoders, data.trains_encoder, strict=True):
            encoder.train(trains and encoder.training)  # T5 has dropout in training mode
        with torch.no_grad():
            text = data.family.text.encode(data.components, frozen)
    return (pad(text, options.compiling) if text else {}), trained
