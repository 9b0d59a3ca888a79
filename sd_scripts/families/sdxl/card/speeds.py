"""What compiling SDXL takes, and how fast it trains, as measured."""

from sd_scripts.families.cards.family_card import DynamicGraphs, GraphCounts, Speed

GRAPHS = GraphCounts(
    kinds=2,
    per_shape=12,
    per_token_count=2,
    dynamic={"auto": DynamicGraphs(sizes=1, tokens=1, images=13), "true": DynamicGraphs(sizes=1)},
    seconds=2.0,
)
"""Twelve for the resnets, two for the transformer blocks, which see images as sequences of tokens. Resnets of the first
shape accept most sizes already, since those of one class differ in size."""
FULL = {"full_bf16": True}
CHECKPOINTED = {"gradient_checkpointing": True}
BATCH4 = {"train_batch_size": 4}
COMPILED = {"compile": True}
REDUCED = {"compile": True, "compile_mode": "reduce-overhead"}
UNRECORDED = {"record_steps": False}
SPEEDS = (
    Speed(method="lora", options={}, seconds=0.0813),
    Speed(method="lora", options=COMPILED, seconds=0.0607),
    Speed(method="lora", options=REDUCED, seconds=0.0607),
    Speed(method="lora", options=BATCH4, seconds=0.2054),
    Speed(method="lora", options={**BATCH4, **COMPILED}, seconds=0.1661),
    Speed(method="lora", options={**BATCH4, **REDUCED}, seconds=0.1661),
    Speed(method="lora", options=CHECKPOINTED, seconds=0.109),
    Speed(method="lora", options={**CHECKPOINTED, **COMPILED}, seconds=0.0836),
    Speed(method="lora", options={**CHECKPOINTED, **REDUCED}, seconds=0.0836),
    Speed(method="full", options=FULL, seconds=0.0873),
    Speed(method="full", options={**FULL, **COMPILED}, seconds=0.0765),
    Speed(method="full", options={**FULL, **REDUCED}, seconds=0.0765),
    Speed(method="lora", options=UNRECORDED, seconds=0.197),
    Speed(method="lora", options={**UNRECORDED, **COMPILED}, seconds=0.1396),
    Speed(method="lora", options={**UNRECORDED, **BATCH4}, seconds=0.2293),
    Speed(method="lora", options={**UNRECORDED, **BATCH4, **COMPILED}, seconds=0.190),
    Speed(method="lora", options={**UNRECORDED, **CHECKPOINTED}, seconds=0.7602),
    Speed(method="lora", options={**UNRECORDED, **CHECKPOINTED, **COMPILED}, seconds=0.5633),
    Speed(method="full", options={**UNRECORDED, **FULL}, seconds=0.1764),
    Speed(method="full", options={**UNRECORDED, **FULL, **COMPILED}, seconds=0.1686),
)
"""Unrecorded steps wait for the CPU, so theirs are times of a quick one."""
