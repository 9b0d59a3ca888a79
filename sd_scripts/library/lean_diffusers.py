"""diffusers' base classes, imported without the packages that it only has integrations for.

Wherever peft and bitsandbytes are installed, diffusers imports both, and with them half of the compiler, before a model
can be made: more than a second at each start. Nothing here uses its integrations, apart from pipelines that load a
LoRA, which look for peft when they do. Modules of training import diffusers after this one.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from diffusers.utils import import_utils

UNUSED = ("_peft_available", "_bitsandbytes_available")


@contextmanager
def _without_integrations() -> Iterator[None]:
    before = {name: getattr(import_utils, name) for name in UNUSED if hasattr(import_utils, name)}
    for name in before:
        setattr(import_utils, name, False)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(import_utils, name, value)


with _without_integrations():
    from diffusers import AutoencoderKL, AutoencoderKLQwenImage

__all__ = ["AutoencoderKL", "AutoencoderKLQwenImage"]
