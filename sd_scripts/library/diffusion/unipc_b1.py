"""UniPC of third order with B1(h) (Zhao et al. 2023), for lambda = -log sigma and no alpha.

Each step predicts the latents at the next sigma, evaluates the velocity there, and corrects them with it. The last
evaluation, at the last sigma above 0, gives the sample.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

ORDER = 3
Evaluate = Callable[[Tensor, float], Tensor]
"""Latents, sigma -> the predicted sample."""


def unipc(noise: Tensor, sigmas: Sequence[float], evaluate: Evaluate) -> Tensor:
    """Return the sample of noise. `sigmas` start at 1 and end at 0; each but the last is evaluated once."""
    latents = noise
    samples = [evaluate(latents, sigmas[0])]
    steps = len(sigmas) - 1
    for number, (here, there) in enumerate(pairwise(sigmas[:-1])):
        order = min(ORDER, steps - 1, number + 1)
        before = [_ratio(sigmas[number - back], here, there) for back in range(1, order)]
        h = math.log(here / there)
        moved = there / here * latents - math.expm1(-h) * samples[-1]
        slopes = [(samples[-1 - back] - samples[-1]) / ratio for back, ratio in enumerate(before, 1)]
        predicted = _shifted(moved, h, _weights(h, before) if order > 2 else [0.5] * len(slopes), slopes)
        samples.append(evaluate(predicted, there))
        slopes.append(samples[-1] - samples[-2])
        latents = _shifted(moved, h, _weights(h, [*before, 1.0]) if order > 1 else [0.5], slopes)
        del samples[:-ORDER]
    return samples[-1]


def _ratio(sigma: float, here: float, there: float) -> float:
    """Return how many steps, from here to there, an earlier sigma is away: below 0."""
    return math.log(here / sigma) / math.log(here / there)


def _shifted(latents: Tensor, h: float, weights: Sequence[float], slopes: Sequence[Tensor]) -> Tensor:
    return latents + h * sum(weight * slope for weight, slope in zip(weights, slopes, strict=True))


def _weights(h: float, ratios: Sequence[float]) -> list[float]:
    """Solve for the weights of the slopes at these ratios."""
    rows, right = [], []
    phi = math.expm1(-h) / -h - 1
    for power in range(1, len(ratios) + 1):
        rows.append([ratio ** (power - 1) for ratio in ratios])
        right.append(phi * math.factorial(power) / -h)
        phi = phi / -h - 1 / math.factorial(power + 1)
    solved = torch.linalg.solve(torch.tensor(rows, dtype=torch.float64), torch.tensor(right, dtype=torch.float64))
    return [float(weight) for weight in solved]
