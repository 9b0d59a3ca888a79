"""The name under which users import the contents of `families/flux/card/layer_rules.py`."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(import_module("sd_scripts.families.flux.card.layer_rules"), name)
