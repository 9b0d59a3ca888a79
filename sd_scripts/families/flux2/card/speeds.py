"""What compiling FLUX.2 klein takes."""

from sd_scripts.families.cards.family_card import DynamicGraphs, GraphCounts

GRAPHS = GraphCounts(
    kinds=2,
    per_shape=0,
    per_token_count=2,
    dynamic={"auto": DynamicGraphs(tokens=3), "true": DynamicGraphs(always=1)},
    seconds=9.4,
)
"""One each for double and single blocks, as of FLUX.1, whose seconds these are."""
