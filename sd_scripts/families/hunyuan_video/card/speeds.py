"""What compiling HunyuanVideo takes."""

from sd_scripts.families.cards.family_card import DynamicGraphs, GraphCounts

GRAPHS = GraphCounts(
    kinds=2,
    per_shape=0,
    per_token_count=2,
    dynamic={"auto": DynamicGraphs(tokens=3), "true": DynamicGraphs(always=1)},
    seconds=9.4,
)
"""One each for double and single blocks, which see clips as sequences of tokens. The seconds are an estimate from
FLUX.1's blocks, which have the same sizes."""
