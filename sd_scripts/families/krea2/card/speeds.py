"""What compiling Krea 2 takes, and how fast it trains, as measured."""

from sd_scripts.families.cards.family_card import DynamicGraphs, GraphCounts, Speed

GRAPHS = GraphCounts(
    kinds=1,
    per_shape=0,
    per_token_count=1,
    dynamic={"auto": DynamicGraphs(tokens=1), "true": DynamicGraphs(always=1)},
    seconds=5.0,
)
"""One for all blocks, which see image and caption as a sequence of tokens; further ones for captions of a different
length after rounding up (text.py). The seconds are an estimate from FLUX.1's double block."""
SPEEDS = (Speed(method="lora", options={"compile": True}, seconds=0.448),)
"""Recorded on one H200."""
