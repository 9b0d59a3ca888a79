"""How fast Chroma trains, as measured on one H200, recorded."""

from sd_scripts.families.cards.family_card import Speed

SPEEDS = (
    Speed(method="lora", options={}, seconds=0.3286),
    Speed(method="lora", options={"compile": True}, seconds=0.3012),
)
