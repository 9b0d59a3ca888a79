"""Pack latents into FLUX.1's tokens of 2x2 latents each, predict, and unpack."""

from typing import Any

from torch import Tensor, nn

from sd_scripts.library.dit_layers import grid_of, pack, unpack


def predict(
    transformer: nn.Module,
    noisy: Tensor,
    timesteps: Tensor,
    text: dict[str, Tensor],
    guidance: Tensor | None,
    *,
    masked: bool,
) -> Tensor:
    """Predict the velocity, noise - image, (B, 16, h, w) float32.

    noisy (B, 16, h, w), timesteps (B,) float32 in 0..1, text as returned by encode_text, guidance (B,) or None for
    schnell; `masked`: attention ignores the padding of the text.
    """
    grid = grid_of(noisy)
    mask = text["t5_attn_mask"] if masked else None
    flux: Any = transformer
    tokens = flux(pack(noisy), text["t5_out"], text["l_pooled"], timesteps, guidance, grid, mask)
    return unpack(tokens, grid).float()
