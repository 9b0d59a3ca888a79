"""What compiling Z-Image takes."""

from sd_scripts.families.cards.family_card import DynamicGraphs, GraphCounts

GRAPHS = GraphCounts(
    kinds=1,
    per_shape=0,
    per_token_count=2,
    dynamic={"auto": DynamicGraphs(tokens=2), "true": DynamicGraphs()},
    seconds=5.0,
)
"""One for the refiners of the image and one for all blocks after them; further ones for captions of a different length
after rounding up (text.py). The seconds are an estimate from FLUX.1's double block."""
