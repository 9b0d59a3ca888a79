"""Anima's training objective: flow matching, in which the model predicts the velocity from image to noise."""

from collections.abc import Mapping

from torch import Tensor, nn

from sd_scripts.families.common.family import Components, StepInputs
from sd_scripts.families.common.objective import flow_loss
from sd_scripts.settings.settings import Settings


def loss(components: Components, inputs: StepInputs, settings: Settings) -> Tensor:
    """Return the loss of each image (B,) float32."""
    model = inputs.model
    velocity = predict(components.denoiser, model["noisy"], model["timesteps"], inputs.text)
    return flow_loss(velocity, model, settings)


def predict(transformer: nn.Module, noisy: Tensor, timesteps: Tensor, text: Mapping[str, Tensor] | Tensor) -> Tensor:
    """Predict the velocity, noise - image, (B, 16, h, w) float32.

    noisy (B, 16, h, w), timesteps (B,) float32 in 0..1, text as the transformer reads it.
    """
    velocity: Tensor = transformer(noisy, timesteps, text)
    return velocity.float()
