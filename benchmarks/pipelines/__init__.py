"""The pipelines of diffusers that images are timed with in comparison to our own generator: a module for each
family."""

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

FAMILIES = tuple(module.name for module in iter_modules(__path__) if module.name != "anima")
"""Families that have one; Anima's takes no text that is encoded in advance, so only its steps are timed."""


def pipeline_module(family: str) -> ModuleType:
    """Import the module of a family: the function that creates its pipeline, and the options that all rows share."""
    return import_module(f"benchmarks.pipelines.{family}")
