"""Wan 2.2 A14B: samples of two models, one for high and one for low noise; a run trains one of them."""

from collections.abc import Callable
from typing import cast

from torch import Tensor

from sd_scripts.families.common.components import Components
from sd_scripts.families.common.flow_sampling import Velocity
from sd_scripts.families.common.placing import placement_of
from sd_scripts.families.wan.card import HIGH_NOISE
from sd_scripts.families.wan.card.options import WanSamplingOptions
from sd_scripts.families.wan.load import place_model
from sd_scripts.families.wan.model import WanTransformer
from sd_scripts.library.diffusion.noise import TIMESTEPS
from sd_scripts.settings.settings import Settings

BOUNDARY, BOUNDARY_OF_IMAGES = 875, 900


class Experts:
    """Predicts the velocity with the model that was trained for this noise level. The one for high noise is loaded for
    its steps, and then given back: it has no use in training."""

    def __init__(
        self, components: Components, settings: Settings, low: Velocity, make: Callable[[WanTransformer], Velocity]
    ):
        """`low`: of the trained model; `make` returns the same for another model."""
        self.components, self.settings, self.low, self.make = components, settings, low, make
        params = cast(WanTransformer, components.denoiser).params
        default = BOUNDARY if params.in_channels == params.channels else BOUNDARY_OF_IMAGES
        self.boundary = (settings[WanSamplingOptions].timestep_boundary or default) / TIMESTEPS
        self.high: Velocity | None = None

    def __call__(self, latents: Tensor, t: Tensor) -> Tensor:
        if float(t.max()) < self.boundary:
            self.close()
            return self.low(latents, t)
        if self.high is None:
            self.components.load(HIGH_NOISE)
            model = cast(WanTransformer, self.components.module(HIGH_NOISE))
            place_model(model, placement_of(self.settings), latents.device)
            self.high = self.make(model)
        return self.high(latents, t)

    def close(self) -> None:
        """Give back the memory of the model for high noise."""
        if self.high is not None:
            self.high = None
            self.components.free(HIGH_NOISE)
