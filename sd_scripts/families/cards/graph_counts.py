"""Graphs of transformers whose blocks see images, clips and captions as sequences of tokens.

The seconds were measured with FLUX.1's blocks; for other families they are an estimate.
"""

from sd_scripts.families.cards.family_card import DynamicGraphs, GraphCounts

ONE_KIND = GraphCounts(
    kinds=1,
    per_shape=0,
    per_token_count=1,
    dynamic={"auto": DynamicGraphs(tokens=1), "true": DynamicGraphs(always=1)},
    seconds=5.0,
)
"""One graph for all blocks; where captions are rounded up, further ones for captions of other lengths."""
DOUBLE_AND_SINGLE = GraphCounts(
    kinds=2,
    per_shape=0,
    per_token_count=2,
    dynamic={"auto": DynamicGraphs(tokens=3), "true": DynamicGraphs(always=1)},
    seconds=9.4,
)
"""One each for double and single blocks."""
