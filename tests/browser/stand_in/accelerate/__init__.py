"""Stands in for accelerate's launcher alone; everything else is the real package, loaded when it is asked for."""

import sys
from pathlib import Path
from typing import Any

_places = [Path(folder or ".") / "accelerate" / "__init__.py" for folder in sys.path]
_REAL = next(place for place in _places if place.is_file() and place.resolve() != Path(__file__).resolve())
__path__.append(str(_REAL.parent))


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    del globals()["__getattr__"]
    exec(compile(_REAL.read_text(encoding="utf-8"), str(_REAL), "exec"), globals())
    return globals()[name]
