"""How Krea 2's timesteps are distributed."""

from functools import partial

from sd_scripts.families.cards import noise_levels
from sd_scripts.families.cards.noise_levels import shift_of

MAX_TOKENS = 6400
"""Tokens of an image for which the logarithm of the shift is 1.15; it is 0.5 for 256 tokens."""


def krea2_shift(tokens: int) -> float:
    """Return the shift for images of this many tokens: 2.48 for 1024x1024, 3.16 for 1280x1280."""
    return shift_of(tokens, most=MAX_TOKENS)


share_above = partial(noise_levels.share_above, shift_of_family=krea2_shift)
