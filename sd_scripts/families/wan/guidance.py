"""How Wan's samples are guided: by a negative prompt at some steps, and away from a model without some blocks."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from sd_scripts.families.common.flow_sampling import Velocity
from sd_scripts.families.wan.card.options import WanSamplingOptions, layers_of
from sd_scripts.families.wan.model import WanTransformer
from sd_scripts.families.wan.objective import predict
from sd_scripts.library.diffusion.noise import TIMESTEPS

ROUNDING = 1e-3
"""Timesteps: a sigma of 0.96 is just below 960 in float32, and 960 in the official code's float64."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """The guidance of one step."""

    guided: bool = True
    """Whether the negative prompt is read."""
    skipped: Collection[int] = ()
    """Blocks that are left out for skip-layer guidance; none: there is no such guidance."""


def steps_of(options: WanSamplingOptions, count: int) -> list[Step]:
    """Return the guidance of each step."""
    skips = layers_of(options.slg_layers) if options.slg_mode else ()
    first, last = int(options.slg_start * count), int(options.slg_end * count)
    return [
        Step(guided=guided, skipped=skips if first <= number < last else ())
        for number, guided in enumerate(guided_steps(options.cfg_skip_mode, options.cfg_apply_ratio, count))
    ]


def guided_steps(mode: str, ratio: float | None, count: int) -> list[bool]:
    """Return at which steps the negative prompt is read, if it is for a share `ratio` of them. `mode`: the ones that
    are skipped."""
    if mode == "none" or ratio is None:
        return [True] * count
    applied = int(ratio * count)
    numbers = range(count)
    if mode == "early":
        return [number >= count - applied for number in numbers]
    if mode == "late":
        return [number < applied for number in numbers]
    if mode == "early_late":
        start = (count - applied) // 2
        return [start <= number < start + applied for number in numbers]
    if mode == "middle":
        start = applied // 2
        return [number < start or number >= count - (applied - start) for number in numbers]
    return [int((number + 1) * ratio) > int(number * ratio) for number in numbers]  # alternate


def guided_velocity(
    transformer: WanTransformer,
    *,
    captions: Sequence[dict[str, Tensor]],
    scale: float,
    conditions: Mapping[str, Tensor],
    step: Callable[[], Step],
    options: WanSamplingOptions,
) -> Velocity:
    """Return a function that predicts the velocity with guidance. `captions`: the prompt, preceded by the negative one
    if there is guidance; they are read one at a time, which takes half of the memory. `step` returns the guidance of
    the current step."""

    def velocity(latents: Tensor, t: Tensor) -> Tensor:
        times = t if t.ndim else t.expand(len(latents))

        def predicted(caption: dict[str, Tensor], skipped: Collection[int] = ()) -> Tensor:
            return predict(transformer, latents, times, caption, conditions, skipped)

        now = step()
        *negative, prompt = captions
        guided = positive = predicted(prompt)
        if negative and now.guided:
            worse = predicted(negative[0], now.skipped if options.slg_mode == "uncond" else ())
            guided = worse + scale * (positive - worse)
        if now.skipped and options.slg_mode == "original":
            guided = guided + options.slg_scale * (positive - predicted(prompt, now.skipped))
        return guided

    return velocity


class StepCounter:
    """Knows the guidance of the current step, and its timestep as the official code rounds it."""

    def __init__(self, steps: Sequence[Step]):
        self.steps, self.number = steps, -1

    def counting(self, velocity: Velocity) -> Velocity:
        """Return the function, which counts a step each time it is called."""

        def counted(latents: Tensor, t: Tensor) -> Tensor:
            self.number += 1
            return velocity(latents, (t.double() * TIMESTEPS + ROUNDING).floor().float() / TIMESTEPS)

        return counted

    def __call__(self) -> Step:
        return self.steps[self.number]
