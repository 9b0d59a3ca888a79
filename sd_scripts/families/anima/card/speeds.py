"""What compiling Anima takes, and how fast it trains, as measured."""

from sd_scripts.families.cards.family_card import DynamicGraphs, GraphCounts, Speed

GRAPHS = GraphCounts(
    kinds=1,
    per_shape=0,
    per_token_count=1,
    dynamic={"auto": DynamicGraphs(tokens=1), "true": DynamicGraphs(always=1)},
    seconds=5.0,
)
"""One for all blocks. The seconds are an estimate from FLUX.1's double block."""
SPEEDS = (
    Speed(method="lora", options={}, seconds=0.1106),
    Speed(method="lora", options={"compile": True}, seconds=0.0982),
)
"""Recorded on one H200."""
