"""How Qwen-Image's timesteps are distributed."""

from functools import partial

from sd_scripts.families.cards import noise_levels
from sd_scripts.families.cards.noise_levels import LEAST_STD, NORMAL, logit, shift_of
from sd_scripts.options.optimization.flow import FlowOptions

MAX_TOKENS, MAX_SHIFT = 8192, 0.9
"""Logarithm of the shift for an image of this many tokens; less for smaller ones."""
RARE, RARE_MEAN = 0.05, 5.36
"""qinglong_qwen: the share of images whose timesteps come from logsnr instead, and its mean: hardly any noise."""


def qwen_shift(tokens: int) -> float:
    """Return the shift for images of this many tokens: 2.00 for 1024x1024, 2.30 for 1328x1328."""
    return shift_of(tokens, most=MAX_TOKENS, highest=MAX_SHIFT)


def share_above(options: FlowOptions, tokens: int, level: float) -> float:
    """Return the share of timesteps above a noise level, of images of this many tokens."""
    usual = _share_above(options, tokens, level)
    match options.timestep_sampling:
        case "logsnr" if 0 < level < 1:
            return _by_signal_to_noise(level, options.logit_mean, options.logit_std)
        case "qinglong_qwen" if 0 < level < 1:
            return (1 - RARE) * usual + RARE * _by_signal_to_noise(level, RARE_MEAN, 1.0)
    return usual


_share_above = partial(noise_levels.share_above, shift_of_family=qwen_shift)


def _by_signal_to_noise(level: float, mean: float, std: float) -> float:
    return NORMAL.cdf((-2 * logit(level) - mean) / max(std, LEAST_STD))
