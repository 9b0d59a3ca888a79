"""What all rows of a comparison share: random weights of the model, a LoRA, and inputs."""

import math
import zlib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from benchmarks.full_size import full_size
from benchmarks.full_size.common.weights import mean_and_deviation
from sd_scripts.data.batch import Batch
from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.family import StepInputs, family_of
from sd_scripts.formats.models.lora_keys import ALPHA, UP
from sd_scripts.library.files.state_dicts import State
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings

RANK = 32
UP_DEVIATION = 0.05
"""Standard deviation of the LoRA's up matrices, with which it changes each layer's output by a seventh."""
OPTIONS = {"network_dim": RANK, "network_alpha": RANK / 2, "record_steps": False}
"""Recorded steps launch the same kernels."""


def on_meta(make: Callable[[], Any]) -> Any:
    """Return the module that `make` creates, without weights."""
    with torch.device("meta"):
        return make()


class Comparison:
    """A model of a family, a LoRA and inputs; the same random numbers for all rows, drawn on the device."""

    def __init__(self, family: str, *, miniature: bool):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.models = import_module(f"benchmarks.gradients.{family}")
        """Makes our denoiser and sd-scripts'."""
        self.family = family_of(family)
        self.settings = Settings(script_for(family, "lora"), full_size(family).OPTIONS["lora"] | OPTIONS)
        self.make_denoiser = partial(on_meta, partial(self.models.make_denoiser, miniature=miniature))
        self.empty = self.make_denoiser()
        """Our denoiser without weights."""
        self.shapes: dict[str, tuple[int, ...]] = self.models.shapes(self.empty, miniature=miniature)
        """Of the latents and of the text embeddings."""
        height, width = (8 * side for side in self.shapes["latents"][-2:])
        self.extent = Extent(width, height)

    def weights(self) -> State:
        """Draw the weights of our denoiser, in bf16."""
        state = {}
        for name, empty in self.empty.state_dict().items():
            gain = math.prod(gain for part, gain in self.models.GAINS.items() if part in name)
            state[name] = self._drawn(name, empty.shape, *mean_and_deviation(name, empty)).mul_(gain).bfloat16()
        return state

    def lora(self, tensors: State) -> State:
        """Draw a LoRA like this one, of the same names, shapes and alphas; no matrix is 0."""
        state = {}
        for name, tensor in tensors.items():
            if name.endswith(ALPHA):
                state[name] = tensor
            else:
                deviation = UP_DEVIATION if name.endswith(UP) else float(tensor[0].numel() ** -0.5)
                state[name] = self._drawn(name, tensor.shape, 0.0, deviation)
        return state

    def inputs(self) -> list[StepInputs]:
        """Draw latents, noise and text embeddings for each timestep."""
        return [self._inputs_at(timestep) for timestep in self.models.TIMESTEPS]

    def _inputs_at(self, timestep: float) -> StepInputs:
        numbers = {name: self._drawn(f"{name} at {timestep}", shape, 0.0, 1.0) for name, shape in self.shapes.items()}
        latents = numbers.pop("latents")
        batch = Batch(
            extent=self.extent,
            captions=[Caption("")],
            pixels=None,
            latents=latents,
            conditioning=self.models.conditioning(self.extent),
            loss_weight=torch.ones(1),
            mask=None,
            bucket=self.extent,
        )
        generator = torch.Generator(self.device).manual_seed(0)
        t = torch.tensor([timestep], device=self.device)
        text = {name: embedding.bfloat16().float() for name, embedding in numbers.items()}
        options = self.family.objective_options(self.settings)
        return StepInputs(model=self.family.step_inputs(batch, latents, options, generator, t), text=text)

    def _drawn(self, name: str, shape: tuple[int, ...], mean: float, deviation: float) -> Tensor:
        """Return random numbers that the name decides, float32."""
        generator = torch.Generator(self.device).manual_seed(zlib.crc32(name.encode()))
        return torch.empty(shape, device=self.device).normal_(mean, deviation, generator=generator)
