"""FLUX.1 dev at full size with random weights, and what its steps read: for benchmarks, where no image counts."""

import torch
from torch import Tensor, nn

from sd_scripts.families.family import Components
from sd_scripts.families.flux.model import FluxParams, FluxTransformer

TEXT_TOKENS = 512


def random_components(device: torch.device, dtype: torch.dtype) -> Components:
    """The transformer alone; nothing is encoded in a benchmark."""
    with torch.device("meta"):
        flux = FluxTransformer(FluxParams()).to(dtype)
    flux = flux.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(0)
    for name, p in flux.named_parameters():
        if p.ndim > 1:
            nn.init.normal_(p, std=p.shape[1] ** -0.5 * (0.3 if "mod" in name else 1.0), generator=generator)
        else:
            nn.init.constant_(p, 1.0 if name.endswith("scale") else 0.0)
    return components_of(flux.requires_grad_(False))


def components_of(flux: FluxTransformer) -> Components:
    extras = {"variant": "dev", "guidance": True, "t5_length": TEXT_TOKENS, "apply_t5_attn_mask": False}
    return Components(denoiser=flux, vae=nn.Identity(), text_encoders=[], tokenizers=[], source="random", extras=extras)


def random_inputs(components: Components, batch: int, size: tuple[int, int], device: torch.device) -> dict[str, Tensor]:
    """What a step reads, as objective.py makes it, from noise; size: width and height in pixels."""
    flux = components.denoiser
    assert isinstance(flux, FluxTransformer)
    generator = torch.Generator(device).manual_seed(size[0])

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, generator=generator)

    channels, (width, height) = flux.shape.channels // 4, size
    return {
        "noisy": normal(batch, channels, height // 8, width // 8),
        "target": normal(batch, channels, height // 8, width // 8),
        "timesteps": torch.rand(batch, device=device, generator=generator),
        "loss_weight": torch.ones(batch, device=device),
        "text.l_pooled": normal(batch, flux.shape.pooled_width),
        "text.t5_out": normal(batch, TEXT_TOKENS, flux.shape.text_width),
        "text.t5_attn_mask": torch.ones(batch, TEXT_TOKENS, device=device),
    }
