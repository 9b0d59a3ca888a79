"""How fast Krea 2 trains, as measured."""

from sd_scripts.families.cards.family_card import Speed

SPEEDS = (Speed(method="lora", options={"compile": True}, seconds=0.448),)
"""Recorded on one H200."""
