"""Full-size models with random weights, a module for each family."""

from importlib import import_module
from types import ModuleType


def full_size(family: str) -> ModuleType:
    """Import the module of a family: its rows, and what writes its files."""
    return import_module(f"benchmarks.full_size.{family}")
