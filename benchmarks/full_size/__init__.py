"""Full-size models with random weights, a module for each family."""

from importlib import import_module
from types import ModuleType


def full_size(family: str, size: str = "") -> ModuleType:
    """Import the module of a family: its rows, and what writes its files. `size`: of a model other than the usual."""
    return import_module(f"benchmarks.full_size.{family}{size and '_'}{size}")
