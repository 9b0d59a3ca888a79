"""Z-Image's training objective: flow matching, in which the model predicts the velocity from image to noise."""

from torch import Tensor, nn

from sd_scripts.families.common.family import Components, StepInputs
from sd_scripts.families.common.objective import flow_loss
from sd_scripts.families.z_image.model import pack
from sd_scripts.families.z_image.text import MASK, STATES
from sd_scripts.library.diffusion.dit_layers import grid_of, unpack_channels_last
from sd_scripts.settings.settings import Settings


def loss(components: Components, inputs: StepInputs, settings: Settings) -> Tensor:
    """Return the loss of each image (B,) float32."""
    model = inputs.model
    velocity = predict(components.denoiser, model["noisy"], model["timesteps"], inputs.text)
    return flow_loss(velocity, model, settings)


def predict(transformer: nn.Module, noisy: Tensor, timesteps: Tensor, text: dict[str, Tensor]) -> Tensor:
    """Predict the velocity, noise - image, (B, 16, h, w) float32.

    noisy (B, 16, h, w), timesteps (B,) float32 in 0..1, text as returned by encode_text, without a mask if nothing
    is padded.
    """
    grid = grid_of(noisy)
    return unpack_channels_last(transformer(pack(noisy), text[STATES], timesteps, grid, text.get(MASK)), grid).float()
