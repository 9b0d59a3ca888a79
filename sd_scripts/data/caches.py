"""What caches of latents and of captions share: what the loader asks of them, and npz files that are never half.

Each entry of ours carries a fingerprint of all that it was made from; one that no longer agrees is made again.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sd_scripts.data.dataset import Item
from sd_scripts.data.images import Pixels

Arrays = Mapping[str, NDArray[Any]]


class LatentStore(Protocol):
    """Where the loader finds latents."""

    def read(self, item: Item, *, flipped: bool) -> tuple[Tensor, Pixels | None]:
        """Latents (C, H/8, W/8) float32, and the opacity of an alpha_mask subset, not flipped; UnreadablePicture."""
        ...


class TextStore(Protocol):
    """Where the loader finds encoded captions."""

    def read(self, item: Item, caption: str) -> dict[str, Tensor]:
        """The outputs of the text encoders for one picture, by name; UnreadablePicture where there is none."""
        ...


def write_arrays(path: Path, arrays: Arrays) -> None:
    """An npz file that is there whole or not at all; OSError with one sentence when the disk does not take it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        why = error.strerror or error
        remedy = "make room, or turn cache_latents_to_disk and cache_text_encoder_outputs_to_disk off"
        raise OSError(f"{path} cannot be written: {why}; {remedy}") from error
    finally:
        with suppress(OSError):
            beside.unlink()


def digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def claim_files(endings: Mapping[Path, str]) -> dict[Path, Path]:
    """A file for each picture, named after its stem; `a.jpg` beside `a.png` takes its whole name."""
    files: dict[Path, Path] = {}
    taken: set[Path] = set()
    for picture, ending in endings.items():
        file = picture.with_name(picture.stem + ending)
        files[picture] = picture.with_name(picture.name + ending) if file in taken else file
        taken.add(file)
    return files
