"""What compiling Z-Image takes, and how fast it trains, as measured."""

from sd_scripts.families.cards.family_card import DynamicGraphs, GraphCounts, Speed

GRAPHS = GraphCounts(
    kinds=1,
    per_shape=0,
    per_token_count=2,
    dynamic={"auto": DynamicGraphs(tokens=2), "true": DynamicGraphs()},
    seconds=5.0,
)
"""One for the refiners of the image and one for all blocks after them; further ones for captions of a different length
after rounding up (text.py). The seconds are an estimate from FLUX.1's double block."""
SPEEDS = (
    Speed(method="lora", options={}, seconds=0.2851),
    Speed(method="lora", options={"compile": True}, seconds=0.2422),
)
"""Recorded on one H200."""
