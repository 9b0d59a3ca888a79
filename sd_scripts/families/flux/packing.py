"""Pack latents into FLUX.1's tokens of 2x2 latents each, predict, and unpack."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sd_scripts.library.diffusion.dit_layers import grid_of, pack, unpack


def predict(
    transformer: nn.Module,
    noisy: Tensor,
    timesteps: Tensor,
    text: dict[str, Tensor],
    guidance: Tensor | None,
    *,
    masked: bool,
    controls: Sequence[Tensor] = (),
) -> Tensor:
    """Predict the velocity, noise - image, (B, 16, h, w) float32.

    noisy (B, 16, h, w), timesteps (B,) float32 in 0..1, text as returned by encode_text, guidance (B,) or None for
    schnell; `masked`: attention ignores the padding of the text; `controls`: latents of the control images, each
    (B, 16, h', w').
    """
    images = (noisy, *controls)
    mask = text["t5_attn_mask"] if masked else None
    flux: Any = transformer
    tokens = torch.cat([pack(image) for image in images], dim=1)
    grid, *others = (grid_of(image) for image in images)
    tokens = flux(tokens, text["t5_out"], text["l_pooled"], timesteps, guidance, grid, mask, tuple(others))
    return unpack(tokens, grid).float()
