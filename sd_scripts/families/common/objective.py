"""Inputs and loss of flow matching, and other parts of a training step that families share."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sd_scripts.data.batch import Batch
from sd_scripts.data.plan.buckets import Extent
from sd_scripts.families.common.components import Components
from sd_scripts.library.diffusion.dit_layers import grid3d_of, grid_of
from sd_scripts.library.diffusion.flow_timesteps import draw_sigmas, loss_weights, within_bounds
from sd_scripts.library.diffusion.losses import diffusion_loss
from sd_scripts.library.diffusion.noise import TIMESTEPS, expand_to, normal, perturb, timestep_bounds
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.optimization.loss import LossOptions, NoiseOptions
from sd_scripts.options.spec import OptionGroup

Draw = Callable[[int, FlowOptions, int, torch.Generator], Tensor]
"""How many, options, tokens of an image, generator -> sigmas."""
TRIES = 1000
"""Draws until one is within the bounds, at most."""

Tokens = dict[int, dict[str, Tensor]]
"""Tensors by name, batch first, by the index of the text encoder that reads them."""

FLOW_METADATA = (
    *("timestep_sampling", "discrete_flow_shift", "sigmoid_scale"),
    *("weighting_scheme", "logit_mean", "logit_std", "mode_scale"),
)
"""Options of flow matching in LoRA files."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveOptions:
    """The options of the training objective: how noise and timesteps are drawn, and how the loss is computed."""

    noise: NoiseOptions
    flow: FlowOptions
    """Its defaults in a family without flow matching."""
    loss: LossOptions
    family: OptionGroup | None
    """The group that Family.objective_group names."""


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """Everything that a micro-step reads, made outside it: a pytree of tensors of static shape, on the device."""

    model: dict[str, Tensor]
    """The family's step_inputs, such as noisy latents, target and timesteps."""
    text: dict[str, Tensor]
    """Outputs of the text encoders, as TextEncoding.encode returns them."""
    tokens: Tokens = field(default_factory=dict)
    """Tokens for the trained text encoders, which the micro-step encodes."""
    controls: tuple[Tensor, ...] = ()
    """Latents of the control images, in order: each (B, C, h, w)."""


pytree.register_dataclass(StepInputs)

Loss = Callable[[Components, StepInputs, ObjectiveOptions], Tensor]
"""Components, inputs with the text of all encoders, options -> loss of each sample (B,)."""


def loss_inputs(batch: Batch, device: torch.device) -> dict[str, Tensor]:
    """Return loss_weight (B,), and mask (B, 1, H, W) if the batch has one."""
    tensors = {"loss_weight": batch.loss_weight, "mask": batch.mask}
    return {name: x.to(device, torch.float32, non_blocking=True) for name, x in tensors.items() if x is not None}


def tokens_of(latents: Tensor) -> int:
    """Return the tokens of an image, 2x2 latents each."""
    return math.prod(grid_of(latents))


def clip_tokens_of(latents: Tensor) -> int:
    """Return the tokens of a clip, 2x2 latents of a frame each."""
    return math.prod(grid3d_of(latents))


def flow_inputs(
    batch: Batch,
    latents: Tensor,
    options: ObjectiveOptions,
    generator: torch.Generator,
    timesteps: Tensor | None = None,
    *,
    count_tokens: Callable[[Tensor], int] = tokens_of,
    draw: Draw = draw_sigmas,
) -> dict[str, Tensor]:
    """Return the inputs of flow matching, on the latents' device.

    noisy and target, the velocity, as latents (B, C, *S); timesteps (B,) float32, 0 is the image and 1 noise alone,
    drawn by `draw` for as many tokens as `count_tokens` finds in the latents, unless they are given; and what
    loss_inputs returns.
    """
    noise = normal(latents.shape, generator)
    if timesteps is None:
        timesteps = flow_timesteps(len(latents), count_tokens(latents), options, generator, draw=draw)
    t = expand_to(timesteps.float(), latents)
    return {
        "noisy": (1 - t) * latents + t * perturb(noise, options.noise, generator),
        "target": noise - latents,
        "timesteps": timesteps.float(),
        **loss_inputs(batch, latents.device),
    }


def flow_timesteps(
    count: int,
    tokens: int,
    options: ObjectiveOptions,
    generator: torch.Generator,
    *,
    draw: Draw = draw_sigmas,
    part: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    """Draw timesteps (count,) within min_timestep and max_timestep; the other arguments as in flow_inputs. `part`:
    each is drawn until it is within these bounds."""
    low, high = timestep_bounds(options.noise)
    if options.flow.preserve_distribution_shape:
        bounds = max(part[0], low / TIMESTEPS), min(part[1], high / TIMESTEPS)
        return draws_within(lambda tries: draw(tries, options.flow, tokens, generator), count, *bounds)

    def scaled(tries: int) -> Tensor:
        return within_bounds(draw(tries, options.flow, tokens, generator), low, high)

    return scaled(count) if part == (0.0, 1.0) else draws_within(scaled, count, *part)


def draws_within(draw: Callable[[int], Tensor], count: int, low: float, high: float) -> Tensor:
    """Return draws (count,) within bounds: of TRIES for each the first one, or if there is none the nearest bound."""
    tries = draw(TRIES * count).view(TRIES, count)
    first = ((tries >= low) & (tries <= high)).int().argmax(dim=0, keepdim=True)
    return tries.gather(0, first)[0].clamp(low, high)


@dataclass(frozen=True, kw_only=True)
class HighNoise:
    """Draws timesteps of batches that are trained at two sizes: at a smaller one above highnoise_sigma.

    A batch has one size, which must be known before its images are read. One draw of a timestep decides it, and then
    each sample is drawn until it is on the same side of highnoise_sigma: the timesteps of a batch are on one side, and
    each alone is distributed as without the option. A shift that depends on the size counts the tokens of the bucket:
    the model learns the noise levels that it passes on its way to an image of that size.
    """

    options: ObjectiveOptions
    tokens: Callable[[int, int, int], int]
    """As PlanCard.tokens."""
    draw: Draw

    def decides(self, bucket: Extent, seed: int) -> bool:
        """Return whether a batch is at high noise."""
        chosen = self._draw(1, bucket, torch.Generator().manual_seed(seed), (0.0, 1.0))
        return bool(chosen > self._sigma)

    def timesteps(self, count: int, bucket: Extent, generator: torch.Generator, *, high: bool) -> Tensor:
        """Draw timesteps (count,) of a batch at high noise or at the remaining levels."""
        above = float(torch.nextafter(torch.tensor(self._sigma), torch.tensor(1.0)))
        return self._draw(count, bucket, generator, (above, 1.0) if high else (0.0, self._sigma))

    @property
    def _sigma(self) -> float:
        return self.options.noise.highnoise_sigma

    def _draw(self, count: int, bucket: Extent, generator: torch.Generator, part: tuple[float, float]) -> Tensor:
        tokens = self.tokens(bucket.width, bucket.height, bucket.frames)
        return flow_timesteps(count, tokens, self.options, generator, draw=self.draw, part=part)


def flow_loss(velocity: Tensor, inputs: Mapping[str, Tensor], options: ObjectiveOptions) -> Tensor:
    """Return the loss of each sample (B,) float32, of a predicted velocity (B, C, *S) and what flow_inputs returned."""
    t = inputs["timesteps"]
    loss_weight = inputs["loss_weight"] * loss_weights(t, options.flow.weighting_scheme)
    mask = inputs.get("mask")
    return diffusion_loss(velocity, inputs["target"], t, options.loss, loss_weight=loss_weight, mask=mask)


def velocity_loss(
    predict: Callable[..., Tensor],
    *,
    controls: bool = False,
    loss_of: Callable[[Tensor, Mapping[str, Tensor], ObjectiveOptions], Tensor] = flow_loss,
) -> Loss:
    """Return the loss of a model that predicts the velocity from noisy latents, timesteps and text, and with `controls`
    from the latents of control images. `loss_of`: prediction, inputs, options -> loss of each sample (B,)."""

    def loss(components: Components, inputs: StepInputs, options: ObjectiveOptions) -> Tensor:
        model = inputs.model
        more = (inputs.controls,) if controls else ()
        velocity = predict(components.denoiser, model["noisy"], model["timesteps"], inputs.text, *more)
        return loss_of(velocity, model, options)

    return loss


def flow_validation_timesteps(noise: NoiseOptions) -> list[float]:
    """Return four, evenly spaced in the range that is trained: 0.2, 0.4, 0.6 and 0.8 of the whole."""
    low, high = trained_range(noise)
    return [low + (high - low) * part / 5 for part in (1, 2, 3, 4)]


def trained_range(noise: NoiseOptions) -> tuple[float, float]:
    """Return the lowest and highest timestep that is trained, in 0..1."""
    low, high = timestep_bounds(noise)
    return low / TIMESTEPS, high / TIMESTEPS
