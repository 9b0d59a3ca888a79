"""The classes of diffusers that training uses, imported without unneeded modules.

Before a model can be made, diffusers imports the packages that it has integrations for, half of the compiler, and all
its other models. Nothing here uses these. A LoRA run of one step from full caches takes 2.6 s of CPU time with this
module and 6.4 s without it (medians of 20 runs each, in turn): the compiler's import is 1.0 s of that, the
integrations' 0.5 s, the other models' 0.2 s, and the rest what several of them import.
Modules of training import diffusers from here, or after this module.
"""

import importlib.metadata
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


def _unmarked(function: Any = None, *_: Any, **__: Any) -> Any:
    """Stand in for torch.compiler.disable and allow_in_graph: return the function, or what returns it."""
    return function or _unmarked


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Keep diffusers from importing torch.compile, which takes as long as PyTorch itself, for marks on its own
    functions and classes: on those that offload to main memory or make a model within compiled code."""
    found = torch.compiler.disable
    blocked = "torch._dynamo" not in sys.modules
    if blocked:
        sys.modules["torch._dynamo"] = None  # type: ignore[assignment]
    torch.compiler.disable = _unmarked  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compiler.disable = found
        if blocked:
            del sys.modules["torch._dynamo"]


class _Distributions(Mapping[str, list[str]]):
    """What importlib.metadata.packages_distributions returns, read when it is asked for.

    It reads a file of every installed package, which takes 0.4 s of CPU time. diffusers makes it at its import, and
    asks for packages only that few people have.
    """

    read = staticmethod(importlib.metadata.packages_distributions)

    @cached_property
    def _known(self) -> Mapping[str, list[str]]:
        return self.read()

    def __getitem__(self, package: str) -> list[str]:
        return self._known[package]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


@contextmanager
def _without_reading_packages() -> Iterator[None]:
    importlib.metadata.packages_distributions = _Distributions  # type: ignore[assignment]
    try:
        yield
    finally:
        importlib.metadata.packages_distributions = _Distributions.read


with _without_compiler(), _without_reading_packages():
    import diffusers.loaders  # the contents of this package depend on the available libraries
    from diffusers.utils import import_utils

UNUSED = ("_transformers_available", "_peft_available", "_bitsandbytes_available")
INCOMPLETE = (
    *("diffusers.loaders.lora_base", "diffusers.loaders.lora_pipeline", "diffusers.loaders.single_file_utils"),
    "diffusers.models.lora",
)
"""Modules that lack functions without them. Pipelines, if any are loaded, import them again."""


@contextmanager
def _without_integrations() -> Iterator[None]:
    known = {name for name in INCOMPLETE if name in sys.modules}
    before = {name: getattr(import_utils, name) for name in UNUSED if hasattr(import_utils, name)}
    for name in before:
        setattr(import_utils, name, False)
    sys.modules.setdefault("transformers", None)  # type: ignore[arg-type]  # importing it fails where nothing is asked
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(import_utils, name, value)
        if sys.modules["transformers"] is None:
            del sys.modules["transformers"]
        for name in {*INCOMPLETE} - known:
            sys.modules.pop(name, None)


PACKAGES = (
    "diffusers.hooks",
    "diffusers.models.autoencoders",
    "diffusers.models.transformers",
    "diffusers.models.unets",
)
"""Packages that import all their modules when one of these is imported."""


@contextmanager
def _without_siblings() -> Iterator[None]:
    """Keep a module of these packages from importing the others."""
    unknown = [name for name in PACKAGES if name not in sys.modules]
    for name in unknown:
        package = ModuleType(name)
        package.__path__ = [str(Path(diffusers.__path__[0], *name.split(".")[1:]))]
        sys.modules[name] = package
    try:
        yield
    finally:  # whoever imports them after this gets the whole packages
        for name in unknown:
            del sys.modules[name]
            above, _, own = name.rpartition(".")
            vars(sys.modules[above]).pop(own, None)


with _without_integrations(), _without_compiler(), _without_siblings():
    from diffusers import (
        AutoencoderKL,
        AutoencoderKLFlux2,
        AutoencoderKLHunyuanVideo,
        AutoencoderKLQwenImage,
        AutoencoderKLWan,
        ModelMixin,
        UNet2DConditionModel,
    )
    from diffusers.models import Transformer2DModel
    from diffusers.models.activations import GEGLU
    from diffusers.models.attention import BasicTransformerBlock
    from diffusers.models.attention_processor import Attention
    from diffusers.models.resnet import ResnetBlock2D

__all__ = [
    "GEGLU",
    "Attention",
    "AutoencoderKL",
    "AutoencoderKLFlux2",
    "AutoencoderKLHunyuanVideo",
    "AutoencoderKLQwenImage",
    "AutoencoderKLWan",
    "BasicTransformerBlock",
    "ModelMixin",
    "ResnetBlock2D",
    "Transformer2DModel",
    "UNet2DConditionModel",
]
