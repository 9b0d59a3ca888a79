"""How fast FLUX.1 trains, as measured."""

from sd_scripts.families.cards.family_card import Speed

CHECKPOINTED = {"gradient_checkpointing": True}
UNRECORDED = {"record_steps": False}
SPEEDS = (
    Speed(method="lora", options={}, seconds=0.3899),
    Speed(method="lora", options={"compile": True}, seconds=0.3444),
    Speed(method="lora", options=CHECKPOINTED, seconds=0.5531),
    Speed(method="lora", options={**CHECKPOINTED, "compile": True}, seconds=0.5012),
    Speed(method="lora", options=UNRECORDED, seconds=0.3951),
    Speed(method="lora", options={**UNRECORDED, "compile": True}, seconds=0.3482),
    Speed(method="lora", options={**UNRECORDED, **CHECKPOINTED}, seconds=0.5565),
    Speed(method="lora", options={**UNRECORDED, **CHECKPOINTED, "compile": True}, seconds=0.5039),
)
"""Recorded on one H100. The GPU is the slower one, so recording changes little: the others are as much longer as on an
H200, where both were measured."""
