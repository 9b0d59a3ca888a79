"""Import Gradio without two habits that cost a form of this size its speed.

For each class of components Gradio parses the source again and compares, or writes, a .pyi file, which only editors
read: 1.3 s of CPU time at each start of the GUI. And for each component that it creates, changes or describes, it asks
`inspect` again for the parameters of the class: 0.5 s at each start, and more at each new page. A start takes 3.0 s
with this module and 4.9 s without it (medians of 20 alternating runs each).

Imported by the package, so before any module of it imports Gradio.
"""

import functools
import inspect
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType, SimpleNamespace

ASKING = ("gradio.component_meta", "gradio.blocks")
"""Modules that ask for parameters; the first writes the .pyi files too."""
REMEMBERING = SimpleNamespace(
    **vars(inspect)
    | {"signature": functools.cache(inspect.signature), "getfullargspec": functools.cache(inspect.getfullargspec)}
)
"""`inspect`, which looks at each function once."""


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        module.inspect = REMEMBERING  # type: ignore[attr-defined]
        if module.__name__ == ASKING[0]:
            module.create_or_modify_pyi = lambda *_: None  # type: ignore[attr-defined]


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in ASKING:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec and spec.origin and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(name, spec.origin)
        return spec


sys.meta_path.insert(0, _Finder)
