"""`key=value` items of options such as optimizer_args, and classes named by a dotted path."""

import importlib
from collections.abc import Iterable
from typing import Any

from sd_scripts.options.optimization.optimizer_args import literal


def key_values(option: str, items: Iterable[str]) -> dict[str, Any]:
    """Parse the items; values are Python literals: 0.01, True, (0.9, 0.99), None, 'text'.

    Raises ValueError naming `option` if an item has no "=" or its value is not a literal.
    """
    values: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{option}: {item!r} is not of the form key=value")
        try:
            values[key.strip()] = literal(key.strip(), text.strip())
        except ValueError as error:
            raise ValueError(f"{option}: {error}") from error
    return values


def class_by_path(option: str, path: str) -> type:
    """Return the class at `package.module.Class`. Raises ValueError naming `option` if there is none."""
    module, _, name = path.rpartition(".")
    if not module or not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(f"{option}: {path!r} is not a dotted path, such as torch.optim.AdamW")
    try:
        kind = getattr(importlib.import_module(module), name)
    except Exception as error:  # a module that cannot be imported may raise anything
        raise ValueError(f"{option}: not found: {path!r} ({error})") from error
    if not isinstance(kind, type):
        raise ValueError(f"{option}: {path!r} is not a class")
    return kind
