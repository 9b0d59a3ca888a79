"""Anima's training objective: flow matching, in which the model predicts the velocity from image to noise."""

from collections.abc import Mapping

from torch import Tensor, nn

from sd_scripts.families.common.objective import velocity_loss


def predict(transformer: nn.Module, noisy: Tensor, timesteps: Tensor, text: Mapping[str, Tensor] | Tensor) -> Tensor:
    """Predict the velocity, noise - image, (B, 16, h, w) float32.

    noisy (B, 16, h, w), timesteps (B,) float32 in 0..1, text as the transformer reads it.
    """
    velocity: Tensor = transformer(noisy, timesteps, text)
    return velocity.float()


loss = velocity_loss(predict)
