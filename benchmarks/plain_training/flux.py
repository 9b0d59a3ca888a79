"""FLUX.1, by diffusers' classes: flow matching with logit-normal timesteps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline
from torch import Tensor
from torch.nn import functional as F

from benchmarks.pipelines.flux import make_transformer, to_diffusers
from benchmarks.plain_training.loop import Options, PlainTraining, linear_layers
from sd_scripts.families.flux.family import FLUX
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings
from sd_scripts.testing import trained


class Training(PlainTraining):
    script = "train_dreambooth_lora_flux.py"

    @staticmethod
    def write_model(folder: Path, options: Options) -> None:
        files = {option: str(path) for option, path in trained.copy_model("flux", folder / "original").items()}
        components: Any = FLUX.open(Settings(script_for("flux", "lora"), files), torch.float32).load()
        transformer = make_transformer(components.denoiser.shape)
        transformer.load_state_dict(to_diffusers(components.denoiser.state_dict()))
        pipeline = FluxPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=options["discrete_flow_shift"]),
            vae=components.vae,
            text_encoder=components.text_encoders[0],
            text_encoder_2=components.text_encoders[1],
            tokenizer=components.tokenizers[0],
            tokenizer_2=components.tokenizers[1],
            transformer=transformer,
        )
        pipeline.save_pretrained(folder)

    def __init__(self, model: Path, options: Options):
        self.pipeline = FluxPipeline.from_pretrained(model)
        self.denoiser = self.pipeline.transformer
        self.rank = options["network_dim"]
        self.shift = options["discrete_flow_shift"]
        self.guidance = options["guidance_scale"]
        self.text_length = options["t5xxl_max_token_length"]

    def layers(self) -> list[str]:
        return linear_layers(self.denoiser, "transformer_blocks.")

    def script_with(self, source: str, layers: Sequence[str]) -> tuple[str, dict[str, Any]]:
        return source, {"lora_layers": ",".join(layers)}

    def script_options(self) -> dict[str, Any]:
        return {
            "lora_alpha": self.rank,
            "max_sequence_length": self.text_length,
            "guidance_scale": self.guidance,
            "weighting_scheme": "logit_normal",
        }

    def encode(self, captions: Sequence[str], pixels: Tensor) -> None:
        self.text, self.pooled, self.text_ids = self.pipeline.encode_prompt(
            captions, captions, max_sequence_length=self.text_length
        )
        vae = self.pipeline.vae
        latents = vae.encode(pixels).latent_dist.mode()
        self.latents = (latents - vae.config.shift_factor) * vae.config.scaling_factor  # (N, 16, h, w)
        count, _, height, width = self.latents.shape
        self.image_ids = FluxPipeline._prepare_latent_image_ids(count, height // 2, width // 2, "cpu", torch.float32)

    def loss(self, chosen: Tensor) -> Tensor:
        clean = self.latents[chosen]
        noise = torch.randn_like(clean)
        times = torch.randn(len(chosen)).sigmoid()
        times = self.shift * times / (1 + (self.shift - 1) * times)
        part = times[:, None, None, None]
        prediction = self.denoiser(
            hidden_states=packed((1 - part) * clean + part * noise),
            timestep=times,
            guidance=torch.full_like(times, self.guidance),
            pooled_projections=self.pooled[chosen],
            encoder_hidden_states=self.text[chosen],
            txt_ids=self.text_ids,
            img_ids=self.image_ids,
        ).sample
        return F.mse_loss(prediction, packed(noise - clean))

    def save(self, folder: Path, state: dict[str, Tensor]) -> None:
        FluxPipeline.save_lora_weights(folder, transformer_lora_layers=state)


def packed(latents: Tensor) -> Tensor:
    """Return patches (B, h·w/4, 64) of latents (B, 16, h, w)."""
    result: Tensor = FluxPipeline._pack_latents(latents, *latents.shape)
    return result
