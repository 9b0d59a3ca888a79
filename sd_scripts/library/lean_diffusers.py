"""The classes of diffusers that training uses, imported without the packages that diffusers only has integrations for.

Wherever transformers, peft and bitsandbytes are installed, diffusers imports them, and with them half of the compiler,
before a model can be made: several times what PyTorch takes at each start. Nothing here uses these integrations.
Modules of training import diffusers from here, or after this module.
"""

import importlib.metadata
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _without_map_of_distributions() -> Iterator[None]:
    """Keep diffusers from looking up which distribution each installed package is of, which checks every file of many
    of them. It finds three integrations by that: optimum-quanto, flashinfer and modelopt."""
    found = importlib.metadata.packages_distributions
    importlib.metadata.packages_distributions = dict  # type: ignore[assignment]
    try:
        yield
    finally:
        importlib.metadata.packages_distributions = found


with _without_map_of_distributions():
    import diffusers.loaders  # noqa: F401  # what this package offers depends on what is available
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


with _without_integrations():
    from diffusers import AutoencoderKL, AutoencoderKLQwenImage, ModelMixin, UNet2DConditionModel
    from diffusers.models import Transformer2DModel
    from diffusers.models.activations import GEGLU
    from diffusers.models.attention import BasicTransformerBlock
    from diffusers.models.attention_processor import Attention
    from diffusers.models.resnet import ResnetBlock2D

__all__ = [
    "GEGLU",
    "Attention",
    "AutoencoderKL",
    "AutoencoderKLQwenImage",
    "BasicTransformerBlock",
    "ModelMixin",
    "ResnetBlock2D",
    "Transformer2DModel",
    "UNet2DConditionModel",
]
