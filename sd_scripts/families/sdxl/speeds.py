"""What compiling SDXL takes, and how fast it trains, as measured."""

from sd_scripts.families.card import DynamicGraphs, GraphCounts, Speed

GRAPHS = GraphCounts(
    kinds=2,
    per_shape=12,
    per_token_count=2,
    dynamic={"auto": DynamicGraphs(sizes=1, tokens=1, images=13), "true": DynamicGraphs(sizes=1)},
    seconds=2.0,
)
"""Twelve for the resnets, two for the transformer blocks, which see images as sequences of tokens. Resnets of the first
shape take most sizes already, since those of one class differ in size."""
FULL = {"full_bf16": True}
CHECKPOINTED = {"gradient_checkpointing": True}
RECORDED = {"compile": True, "compile_mode": "reduce-overhead"}
SPEEDS = (
    Speed(method="lora", options={}, seconds=0.197),
    Speed(method="lora", options={"compile": True}, seconds=0.1396),
    Speed(method="lora", options=RECORDED, seconds=0.0634),
    Speed(method="lora", options={"train_batch_size": 4}, seconds=0.2293),
    Speed(method="lora", options={"train_batch_size": 4, "compile": True}, seconds=0.190),
    Speed(method="lora", options={"train_batch_size": 4, **RECORDED}, seconds=0.1722),
    Speed(method="lora", options=CHECKPOINTED, seconds=0.7602),
    Speed(method="lora", options={**CHECKPOINTED, "compile": True}, seconds=0.5633),
    Speed(method="lora", options={**CHECKPOINTED, **RECORDED}, seconds=0.0836),
    Speed(method="full", options=FULL, seconds=0.1764),
    Speed(method="full", options={**FULL, "compile": True}, seconds=0.1686),
    Speed(method="full", options={**FULL, **RECORDED}, seconds=0.0765),
)
