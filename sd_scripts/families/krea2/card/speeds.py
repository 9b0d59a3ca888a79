"""What compiling Krea 2 takes."""

from sd_scripts.families.cards.family_card import DynamicGraphs, GraphCounts

GRAPHS = GraphCounts(
    kinds=1,
    per_shape=0,
    per_token_count=1,
    dynamic={"auto": DynamicGraphs(tokens=1), "true": DynamicGraphs(always=1)},
    seconds=5.0,
)
"""One for all blocks, which see image and caption as a sequence of tokens; further ones for captions of a different
length after rounding up (text.py). The seconds are an estimate from FLUX.1's double block."""
