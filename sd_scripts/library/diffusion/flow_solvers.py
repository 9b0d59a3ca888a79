"""Solvers of flow matching: from noise at sigma = 1 to a sample at sigma = 0 with few evaluations of the velocity.

Each step gets the velocity v at sigma and predicts the sample m = x - sigma v. With alpha = 1 - sigma and lambda = log
(alpha / sigma), steps are h = lambda' - lambda long.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

FIRST = 0.999
"""Noise level before the shift at which UniPC starts: at 1, lambda is infinite."""


class Solver(Protocol):
    """Steps along `sigmas`, once."""

    sigmas: Sequence[float]
    """Where each step starts and the last one ends."""

    def step(self, latents: Tensor, velocity: Tensor) -> Tensor:
        """Return the latents at the next sigma, of those at this one and their velocity, in their dtype."""


class Euler:
    def __init__(self, sigmas: Sequence[float]):
        self.sigmas = sigmas
        self._steps = 0

    def step(self, latents: Tensor, velocity: Tensor) -> Tensor:
        here, there = self.sigmas[self._steps : self._steps + 2]
        self._steps += 1
        return latents + (there - here) * velocity


class DPMSolver:
    """DPM-Solver++ (2M) of second order, midpoint (Lu et al. 2022)."""

    def __init__(self, sigmas: Sequence[float]):
        self.sigmas = sigmas
        self._samples: list[Tensor] = []

    def step(self, latents: Tensor, velocity: Tensor) -> Tensor:
        number = len(self._samples)
        here, there = self.sigmas[number : number + 2]
        sample = latents - here * velocity
        self._samples.append(sample)
        h = _log_snr(there) - _log_snr(here)
        gain = -(1 - there) * math.expm1(-h)
        latents = there / here * latents + gain * sample
        last = number == len(self.sigmas) - 2
        if number and not last:
            before = _log_snr(here) - _log_snr(self.sigmas[number - 1])
            latents = latents + gain / 2 * (h / before) * (sample - self._samples[-2])
            self._samples[-2] = sample  # only the newest two are read
        return latents


class UniPC:
    """UniPC of second order with B2(h) (Zhao et al. 2023): a predictor, and a corrector that needs no evaluation of its
    own, since it uses the velocity at the predicted latents."""

    def __init__(self, sigmas: Sequence[float]):
        self.sigmas = sigmas
        self._steps = 0
        self._order = 1
        self._samples: list[Tensor] = []
        """The newest two."""
        self._start: Tensor | None = None
        """The corrected latents from which the last step started."""

    def step(self, latents: Tensor, velocity: Tensor) -> Tensor:
        number = self._steps
        sample = latents - self.sigmas[number] * velocity
        if self._start is not None:
            latents = self._moved(number - 1, self._start, corrected_by=sample)
        self._samples = [*self._samples[-1:], sample]
        self._order = min(2, number + 1, len(self.sigmas) - 1 - number)
        self._steps += 1
        self._start = latents
        return self._moved(number, latents)

    def _moved(self, number: int, latents: Tensor, corrected_by: Tensor | None = None) -> Tensor:
        """Return the latents after a step by its number; with the sample at its end, corrected by that."""
        here, there = self.sigmas[number : number + 2]
        h = _log_snr(there) - _log_snr(here)
        factor = math.expm1(-h)
        newest = self._samples[-1]
        moved = there / here * latents - (1 - there) * factor * newest
        if self._order == 1 and corrected_by is None:
            return moved
        ratio, slope = 0.0, 0.0 * newest
        if self._order == 2:
            ratio = (_log_snr(self.sigmas[number - 1]) - _log_snr(here)) / h
            slope = (self._samples[-2] - newest) / ratio
        if corrected_by is None:
            return moved - (1 - there) * factor / 2 * slope
        of_slope, of_end = _corrector_weights(h, ratio) if self._order == 2 else (0.0, 0.5)
        return moved - (1 - there) * factor * (of_slope * slope + of_end * (corrected_by - newest))


def _corrector_weights(h: float, ratio: float) -> tuple[float, float]:
    """Solve for the weights of the slope before a step, `ratio` steps away, and of the step's own end."""
    factor = math.expm1(-h)
    first = factor / -h - 1
    second = first / -h - 1 / 2
    b1, b2 = first / factor, 2 * second / factor
    of_slope = (b1 - b2) / (1 - ratio)
    return of_slope, b1 - of_slope


def _log_snr(sigma: float) -> float:
    """Return log(alpha / sigma): -infinity at 1, infinity at 0."""
    if sigma <= 0:
        return math.inf
    return math.log((1 - sigma) / sigma) if sigma < 1 else -math.inf


SOLVERS: dict[str, Callable[[Sequence[float]], Solver]] = {
    "unipc": UniPC,
    "dpm++": DPMSolver,
    "euler": Euler,
    "vanilla": Euler,
}


def make_solver(name: str, steps: int, shift: float) -> Solver:
    """Return a solver by its name in SOLVERS, with the sigmas of this many steps, shifted."""
    start = FIRST if name == "unipc" else 1.0
    straight = (start * (steps - number) / steps for number in range(steps + 1))
    return SOLVERS[name]([shift * sigma / (1 + (shift - 1) * sigma) for sigma in straight])
