"""Chroma's training objective: FLUX.1's flow matching, without guidance, with the padding of captions masked."""

from typing import Any

from torch import Tensor, nn

from sd_scripts.families.chroma.text import MASK, STATES
from sd_scripts.families.common.family import Components
from sd_scripts.families.common.objective import velocity_loss
from sd_scripts.families.flux.objective import prediction_loss
from sd_scripts.library.diffusion.dit_layers import grid_of, pack, unpack


def predict(transformer: nn.Module, noisy: Tensor, timesteps: Tensor, text: dict[str, Tensor]) -> Tensor:
    """Predict the velocity, noise - image, (B, 16, h, w) float32.

    noisy (B, 16, h, w), timesteps (B,) float32 in 0..1, text as returned by encode_text, without a mask if nothing is
    padded.
    """
    chroma: Any = transformer
    grid = grid_of(noisy)
    tokens = chroma(pack(noisy), text[STATES], None, timesteps, None, grid, text.get(MASK))
    return unpack(tokens, grid).float()


loss = velocity_loss(predict, loss_of=prediction_loss)


def metadata(components: Components) -> dict[str, str]:
    """Return the entries of Chroma's LoRA files that no option changes, as sd-scripts writes them."""
    return {"ss_model_type": "chroma", "ss_apply_t5_attn_mask": "True", "ss_guidance_scale": "0.0"}
