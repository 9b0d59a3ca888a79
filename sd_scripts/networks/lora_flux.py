"""The name under which users import what `families/flux/card/layer_rules.py` holds."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(import_module("sd_scripts.families.flux.card.layer_rules"), name)
