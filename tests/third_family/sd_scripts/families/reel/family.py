"""Reel as a record for the trainer."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
from sd_scripts.families.reel.card import CARD
from sd_scripts.families.reel.card.options import ReelOptions
from sd_scripts.families.reel.model import (
    CHANNELS,
    FACTOR,
    FRAME_STEP,
    TOKENS,
    ReelText,
    ReelTextLayer,
    ReelTransformer,
    ReelVAE,
)
from torch import Tensor

from sd_scripts.data.batch import Batch
from sd_scripts.data.caches.caching import LatentLayout
from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.family import (
    Blocks,
    Components,
    Family,
    FileIdentity,
    ModelWeights,
    Saving,
    StepInputs,
    TextEncoding,
    TextOptions,
    Tokens,
    blocks_of,
)
from sd_scripts.families.common.layouts import Layout, whole_file
from sd_scripts.families.common.objective import ObjectiveOptions, flow_inputs
from sd_scripts.families.common.sampling import length_of, offer_preview
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas
from sd_scripts.library.diffusion.losses import diffusion_loss
from sd_scripts.library.diffusion.media import Media
from sd_scripts.networks.targets import LoraTarget
from sd_scripts.options.generating.prompt_lines import SamplePrompt, size_of
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.settings.settings import Settings

LAYOUTS = {
    "denoiser": Layout(make=lambda shapes: ReelTransformer()),
    "vae": Layout(make=lambda shapes: ReelVAE()),
    "text_encoder1": Layout(make=lambda shapes: ReelText()),
}


def encode_images(components: Components, pixels: Tensor) -> Tensor:
    """(B, 3, F, H, W) -> (B, C, f, h, w): every second frame, each by itself."""
    conv: Any = components.vae.encoder
    frames = pixels[:, :, ::FRAME_STEP].to(conv.weight.device, conv.weight.dtype)
    return conv(frames.transpose(1, 2).flatten(0, 1)).unflatten(0, (len(pixels), -1)).transpose(1, 2)


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    rows = [list(caption.text.encode()[:TOKENS].ljust(TOKENS, b" ")) for caption in captions]
    return {0: {"ids": torch.tensor(rows)}}


def encode_text(components: Components, tokens: Tokens) -> dict[str, Tensor]:
    encoder: Any = components.text_encoders[0]
    return {"states": encoder(tokens[0]["ids"].to(encoder.table.weight.device))} if 0 in tokens else {}


def checkpoint_gradients(denoiser: Any, training: TrainingOptions, network: NetworkOptions | None) -> None:
    denoiser.checkpointing = True


def step_inputs(
    batch: Batch, latents: Tensor, options: ObjectiveOptions, generator: torch.Generator, timesteps: Tensor | None
) -> dict[str, Tensor]:
    return flow_inputs(
        batch, latents, options, generator, timesteps, count_tokens=lambda latents: latents[0, 0].numel()
    )


def loss(components: Components, inputs: StepInputs, options: ObjectiveOptions) -> Tensor:
    model = inputs.model
    states = inputs.text["states"] * cast(ReelOptions, options.family).reel_text_scale
    velocity = components.denoiser(model["noisy"], model["timesteps"], states)
    return diffusion_loss(
        velocity,
        model["target"],
        model["timesteps"],
        options.loss,
        loss_weight=model["loss_weight"],
        mask=model.get("mask"),
    )


@torch.no_grad()
def sample(components: Components, prompt: SamplePrompt, text: dict[str, Tensor], settings: Settings) -> Media:
    height, width = size_of(prompt, CARD.side_multiple)
    frames, fps = length_of(prompt, CARD)
    generator = torch.Generator().manual_seed(prompt.seed or 0)
    denoiser, vae = components.denoiser, components.vae

    def decode(latents: Tensor) -> Tensor:
        """(1, C, f, h, w) -> (3, F, H, W) in 0..1: each latent frame is shown twice."""
        pixels = vae.decoder(latents[0].transpose(0, 1).to(vae.decoder.weight.dtype)).transpose(0, 1)
        return (pixels.float() / 2 + 0.5).clamp(0, 1).repeat_interleave(FRAME_STEP, dim=1)[:, :frames]

    shape = (1, CHANNELS, (frames - 1) // FRAME_STEP + 1, height // FACTOR, width // FACTOR)
    latents = torch.randn(shape, generator=generator)
    sigmas = sampling_sigmas(prompt.steps, 1.0)
    for t, after in pairwise(sigmas):
        latents = latents + (after - t) * denoiser(latents, t.expand(1), text["states"]).float()
        offer_preview(partial(decode, latents))
    return Media.of(decode(latents), fps)


def whole_model(components: Components, weights: ModelWeights) -> dict[str, Tensor]:
    encoder, *_ = weights.text_encoders or (None,)
    text = encoder or components.text_encoders[0].state_dict()
    states = {"denoiser": weights.denoiser, "vae": components.vae.state_dict(), "text_encoder1": text}
    return whole_file(CARD, LAYOUTS, states)


def _name(prefix: str, path: str) -> str:
    return f"{prefix}_{path.replace('.', '_')}"


FAMILY = Family(
    card=CARD,
    identity=FileIdentity(
        base_model_version="reel", architecture=lambda components: "reel", implementation="https://example.com/reel"
    ),
    latents=LatentLayout(
        suffix="reel",
        shape=lambda extent: (
            CHANNELS,
            (extent.frames - 1) // FRAME_STEP + 1,
            extent.height // FACTOR,
            extent.width // FACTOR,
        ),
    ),
    text=TextEncoding(
        tokenize=tokenize,
        encode=encode_text,
        prompt_captions=lambda prompt: [Caption(prompt.prompt)],
        adapted=lambda settings: (True,),
        cache_suffix="reel_te",
        cache_key=lambda components, options: (),
    ),
    layouts=LAYOUTS,
    encode_images=encode_images,
    checkpoint_gradients=checkpoint_gradients,
    objective_group=ReelOptions,
    step_inputs=step_inputs,
    validation_timesteps=lambda noise: [0.25, 0.75],
    loss=loss,
    blocks=Blocks(
        title="Reel",
        denoiser=lambda denoiser: [list(denoiser.blocks)],  # type: ignore[arg-type]
        graph_kinds=lambda denoiser: {"ReelBlock": 1},
        text_encoder=blocks_of(ReelTextLayer),
    ),
    lora=LoraTarget(classes=("ReelBlock",), name=partial(_name, "lora_unet")),
    lora_text_encoders=(LoraTarget(classes=("ReelTextLayer",), name=partial(_name, "lora_te"), group="textencoder 1"),),
    sample=sample,
    saving=Saving(tensors=whole_model),
)
