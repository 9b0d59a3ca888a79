"""What compiling Z-Image takes."""

from sd_scripts.families.cards.family_card import DynamicGraphs, GraphCounts

GRAPHS = GraphCounts(
    kinds=1,
    per_shape=0,
    per_token_count=3,
    dynamic={"auto": DynamicGraphs(tokens=3), "true": DynamicGraphs(always=1)},
    seconds=5.0,
)
"""One each for the refiners of the image, for those of the caption, and for all other blocks; further ones for captions
of a different length after rounding up (text.py). The seconds are an estimate from FLUX.1's double block."""
