"""A denoiser with two sets of weights: one for high noise and one for low noise, which change places in its memory.

One adapter is trained on both, as in musubi-tuner: a batch's noise level decides which weights it is trained with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from sd_scripts.families.common.components import Components
from sd_scripts.families.common.flow_sampling import Velocity
from sd_scripts.families.common.objective import ObjectiveOptions, flow_timesteps, tokens_of, trained_range
from sd_scripts.families.common.placing import BlockLists, Placement
from sd_scripts.library.diffusion.block_transformer import BlockTransformer
from sd_scripts.library.diffusion.idle_weights import IdleWeights
from sd_scripts.options.optimization.loss import NoiseOptions

TRAINED, LOW, HIGH = "ss_trained_experts", "low_noise", "high_noise"
"""Entry in the metadata of an adapter, with the names of the weights that it was trained with."""


@dataclass(kw_only=True)
class Experts:
    """Which weights the denoiser has, and which of them a noise level needs."""

    component: str
    """The component with the weights for high noise; those for low noise are the denoiser's own."""
    option: str
    """The option that names its file."""
    boundary: float
    """From this noise level on, of 1, the weights for high noise are used."""
    high: bool = False
    """Whether the denoiser has the weights for high noise now."""
    idle: IdleWeights | None = None

    def join(self, components: Components, lists: BlockLists, placement: Placement) -> None:
        """Load the weights for high noise to main memory, and take them for the denoiser, which is placed already.
        Raises ValueError, one sentence, if the two are stored differently."""
        denoiser = cast(BlockTransformer, components.denoiser)
        high = cast(BlockTransformer, components.load(self.component).module(self.component))
        self.high = False
        self.idle = lists.let_wait(high, denoiser, placement, self.option, offload=placement.offloads_idle)
        components.free(self.component)

    def use_for(self, t: float) -> None:
        """Give the denoiser the weights for a noise level."""
        high = t >= self.boundary
        if high != self.high:
            assert self.idle, "the denoiser is placed before it computes"
            self.idle.exchange()
            self.high = high

    def draw(self, latents: Tensor, options: ObjectiveOptions, generator: torch.Generator, seed: int) -> Tensor:
        """Return timesteps (B,) that all need the same weights, and give these to the denoiser. One draw, by `seed`,
        chooses the weights, then each sample is drawn until it needs them too."""
        chooser = torch.Generator().manual_seed(seed)
        tokens = tokens_of(latents)
        chosen = float(flow_timesteps(1, tokens, options, chooser))
        self.use_for(chosen)
        bounds = (self.boundary, 1.0) if self.high else (0.0, self.boundary)
        return flow_timesteps(len(latents), tokens, options, generator, part=bounds)

    def validated(self, timesteps: list[float], noise: NoiseOptions) -> list[float]:
        """Return these timesteps, and one amid the trained noise levels of weights that none of them needs."""
        low, high = trained_range(noise)
        missing = []
        if all(t >= self.boundary for t in timesteps):
            missing.append((low + self.boundary) / 2)
        if all(t < self.boundary for t in timesteps):
            missing.append((self.boundary + high) / 2)
        return [*timesteps, *missing]

    def choosing(self, low: Velocity, high: Velocity) -> Velocity:
        """Return a function that predicts the velocity with the weights that the timestep needs."""

        def velocity(latents: Tensor, t: Tensor) -> Tensor:
            self.use_for(float(t.max()))
            return high(latents, t) if self.high else low(latents, t)

        return velocity


class UntrainedExpert:
    """Predicts the velocity with the weights for the noise level, where only the denoiser's are trained. The other ones
    are loaded for their steps, and then given back: they have no use in training, and the adapter is not for them."""

    def __init__(
        self,
        components: Components,
        *,
        component: str,
        boundary: float,
        trains_high: bool,
        make: Callable[[Any, bool], Velocity],
        place: Callable[[Any, torch.device], object],
    ):
        """`component` and `boundary` as of Experts; `make` returns the velocity of a model, and whether it is the one
        for high noise, and `place` moves one to the device."""
        self.components, self.component, self.boundary = components, component, boundary
        self.trains_high, self.make, self.place = trains_high, make, place
        self.trained = make(components.denoiser, trains_high)
        self.other: Velocity | None = None

    def __call__(self, latents: Tensor, t: Tensor) -> Tensor:
        if (float(t.max()) >= self.boundary) == self.trains_high:
            self.close()
            return self.trained(latents, t)
        if self.other is None:
            model = self.components.load(self.component).module(self.component)
            self.place(model, latents.device)
            self.other = self.make(model, not self.trains_high)
        return self.other(latents, t)

    def close(self) -> None:
        """Give back the memory of the other weights."""
        if self.other is not None:
            self.other = None
            self.components.free(self.component)
