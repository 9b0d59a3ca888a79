"""How the timesteps of flow matching are distributed that library/diffusion/flow_timesteps.py draws; without torch."""

import math
from collections.abc import Callable
from statistics import NormalDist

from sd_scripts.options.optimization.flow import FlowOptions

BASE_TOKENS, MAX_TOKENS = 256, 4096
BASE_SHIFT, MAX_SHIFT = 0.5, 1.15
"""Logarithms of the shift for images of this many tokens: larger images get more noise (Esser et al. 2024, 5.3.2)."""
TIMESTEPS = 1000
NORMAL = NormalDist()
LEAST_STD = 1e-6
"""Used in place of a smaller standard deviation, such as 0."""


def shift_of(tokens: int, most: int = MAX_TOKENS, highest: float = MAX_SHIFT) -> float:
    """Return the shift for images of this many tokens: 1.65 for 256x256, 3.16 for 1024x1024. Its logarithm is `highest`
    at `most` tokens."""
    share = (tokens - BASE_TOKENS) / (most - BASE_TOKENS)
    return math.exp(BASE_SHIFT + share * (highest - BASE_SHIFT))


def share_above(
    options: FlowOptions, tokens: int, level: float, shift_of_family: Callable[[int], float] = shift_of
) -> float:
    """Return the share of timesteps above a noise level, of images of this many tokens. `shift_of_family`: tokens ->
    shift of the way of timestep_sampling that is the family's own."""
    if not 0 < level < 1:
        return float(level <= 0)
    how = options.timestep_sampling
    if how == "uniform":
        return 1 - level
    if how == "sigma":
        steps = math.ceil(TIMESTEPS * (1 - _unshifted(level, options.discrete_flow_shift)))
        return _density_below(steps / TIMESTEPS, options)
    if how != "sigmoid":
        level = _unshifted(level, options.discrete_flow_shift if how == "shift" else shift_of_family(tokens))
    return NORMAL.cdf(-logit(level) / options.sigmoid_scale)


def logit(share: float) -> float:
    return math.log(share / (1 - share))


def _unshifted(level: float, shift: float) -> float:
    return level / (shift - (shift - 1) * level)


def _density_below(most: float, options: FlowOptions) -> float:
    """Return the share of the draws of weighting_scheme, where 0 is the noisiest, that are below `most`."""
    if options.weighting_scheme == "logit_normal":
        if not 0 < most < 1:
            return float(most >= 1)
        return NORMAL.cdf((logit(most) - options.logit_mean) / max(options.logit_std, LEAST_STD))
    if options.weighting_scheme == "mode":
        draws = ((number + 0.5) / TIMESTEPS for number in range(TIMESTEPS))
        below = sum(1 - u - options.mode_scale * (math.cos(math.pi * u / 2) ** 2 - 1 + u) < most for u in draws)
        return below / TIMESTEPS
    return most
