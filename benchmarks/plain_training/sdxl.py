"""SDXL, by diffusers' classes: noise prediction with min-SNR loss weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import DDPMScheduler, EulerDiscreteScheduler, StableDiffusionXLPipeline
from diffusers.training_utils import compute_snr
from torch import Tensor

from benchmarks.pipelines.sdxl import make_modules
from benchmarks.plain_training.loop import Options, PlainTraining, linear_layers
from sd_scripts.families.sdxl.family import SDXL
from sd_scripts.families.sdxl.samplers import SDXL as SCHEDULE
from sd_scripts.options.model import MODEL
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings
from sd_scripts.testing import trained

SCRIPT_LAYERS = 'unet_target_modules = ["to_k", "to_q", "to_v", "to_out.0"]'
"""The script has no option for the layers; this line is replaced."""


class Training(PlainTraining):
    script = "train_dreambooth_lora_sdxl.py"

    @staticmethod
    def write_model(folder: Path, options: Options) -> None:
        (file,) = trained.copy_model("sdxl", folder / "original").values()
        components: Any = SDXL.open(Settings(script_for("sdxl", "lora"), {MODEL: str(file)}), torch.float32).load()
        unet, vae = make_modules(components)
        unet.load_state_dict(components.denoiser.state_dict())
        vae.load_state_dict(components.vae.state_dict())
        pipeline = StableDiffusionXLPipeline(
            scheduler=EulerDiscreteScheduler(**SCHEDULE),
            vae=vae,
            text_encoder=components.text_encoders[0],
            text_encoder_2=components.text_encoders[1],
            tokenizer=components.tokenizers[0],
            tokenizer_2=components.tokenizers[1],
            unet=unet,
        )
        pipeline.save_pretrained(folder)

    def __init__(self, model: Path, options: Options):
        self.pipeline = StableDiffusionXLPipeline.from_pretrained(model)
        self.denoiser = self.pipeline.unet
        self.schedule = DDPMScheduler.from_pretrained(model, subfolder="scheduler")
        self.gamma = options["min_snr_gamma"]

    def layers(self) -> list[str]:
        return linear_layers(self.denoiser, "attentions.")

    def script_with(self, source: str, layers: Sequence[str]) -> tuple[str, dict[str, Any]]:
        assert source.count(SCRIPT_LAYERS) == 1
        return source.replace(SCRIPT_LAYERS, f"unet_target_modules = {layers!r}"), {}

    def script_options(self) -> dict[str, Any]:
        return {"snr_gamma": self.gamma}

    def encode(self, captions: Sequence[str], pixels: Tensor) -> None:
        self.text, _, self.pooled, _ = self.pipeline.encode_prompt(captions, do_classifier_free_guidance=False)
        vae = self.pipeline.vae
        self.latents = vae.encode(pixels).latent_dist.mode() * vae.config.scaling_factor  # (N, 4, h, w)
        height, width = pixels.shape[-2:]
        self.sizes = torch.tensor([[height, width, 0, 0, height, width]], dtype=torch.float32)

    def loss(self, chosen: Tensor) -> Tensor:
        clean = self.latents[chosen]
        noise = torch.randn_like(clean)
        times = torch.randint(self.schedule.config.num_train_timesteps, (len(chosen),))
        conditions = {"text_embeds": self.pooled[chosen], "time_ids": self.sizes.expand(len(chosen), -1)}
        noisy = self.schedule.add_noise(clean, noise, times)
        prediction = self.denoiser(noisy, times, self.text[chosen], added_cond_kwargs=conditions).sample
        snr = compute_snr(self.schedule, times)
        weight = snr.clamp(max=self.gamma) / snr
        loss: Tensor = ((prediction - noise).square().mean((1, 2, 3)) * weight).mean()
        return loss

    def save(self, folder: Path, state: dict[str, Tensor]) -> None:
        StableDiffusionXLPipeline.save_lora_weights(folder, unet_lora_layers=state)
