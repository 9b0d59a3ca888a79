"""How fast Anima trains, as measured."""

from sd_scripts.families.cards.family_card import Speed

SPEEDS = (
    Speed(method="lora", options={}, seconds=0.1106),
    Speed(method="lora", options={"compile": True}, seconds=0.0982),
)
"""Recorded on one H200."""
