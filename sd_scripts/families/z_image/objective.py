"""Z-Image's training objective: flow matching, in which the model predicts the velocity from image to noise."""

from torch import Tensor, nn

from sd_scripts.families.common.objective import velocity_loss
from sd_scripts.families.z_image.model import pack
from sd_scripts.families.z_image.text import MASK, STATES
from sd_scripts.library.diffusion.dit_layers import grid_of, unpack_channels_last


def predict(transformer: nn.Module, noisy: Tensor, timesteps: Tensor, text: dict[str, Tensor]) -> Tensor:
    """Predict the velocity, noise - image, (B, 16, h, w) float32.

    noisy (B, 16, h, w), timesteps (B,) float32 in 0..1, text as returned by encode_text, without a mask if nothing
    is padded.
    """
    grid = grid_of(noisy)
    return unpack_channels_last(transformer(pack(noisy), text[STATES], timesteps, grid, text.get(MASK)), grid).float()


loss = velocity_loss(predict)
