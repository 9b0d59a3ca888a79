"""What compiling FLUX.1 takes, and how fast it trains, as measured."""

from sd_scripts.families.card import DynamicGraphs, GraphCounts, Speed

GRAPHS = GraphCounts(
    kinds=2,
    per_shape=0,
    per_token_count=2,
    dynamic={"auto": DynamicGraphs(tokens=3), "true": DynamicGraphs(always=1)},
    seconds=3.6,
)
"""One each for double and single blocks, which see images as sequences of tokens."""
CHECKPOINTED = {"gradient_checkpointing": True}
UNRECORDED = {"record_steps": False}
SPEEDS = (
    Speed(method="lora", options={}, seconds=0.463),
    Speed(method="lora", options={"compile": True}, seconds=0.3583),
    Speed(method="lora", options=CHECKPOINTED, seconds=0.6704),
    Speed(method="lora", options={**CHECKPOINTED, "compile": True}, seconds=0.509),
    Speed(method="lora", options=UNRECORDED, seconds=0.4691),
    Speed(method="lora", options={**UNRECORDED, "compile": True}, seconds=0.3623),
    Speed(method="lora", options={**UNRECORDED, **CHECKPOINTED}, seconds=0.6745),
    Speed(method="lora", options={**UNRECORDED, **CHECKPOINTED, "compile": True}, seconds=0.5117),
)
"""The GPU is the slower one, so recording changes little."""
