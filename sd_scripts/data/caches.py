"""Define what latent and text caches share: the loader's interface to them, and their file names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor

from sd_scripts.data.dataset import Item
from sd_scripts.data.images import Pixels


class LatentStore(Protocol):
    """Where the loader reads latents from."""

    def read(self, item: Item, *, flipped: bool) -> tuple[Tensor, Pixels | None]:
        """Return latents (C, H/8, W/8) float32 and, for an alpha_mask subset, the unflipped opacity; may raise
        UnreadableImage."""
        ...


class TextStore(Protocol):
    """Where the loader reads encoded captions from."""

    def read(self, item: Item, caption: str) -> dict[str, Tensor]:
        """Return the text encoder outputs of one image by name; raise UnreadableImage if there are none."""
        ...


def claim_files(endings: Mapping[Path, str]) -> dict[Path, Path]:
    """Assign each image a file named after its stem; of `a.png` and `a.jpg`, the second gets its full name."""
    files: dict[Path, Path] = {}
    taken: set[Path] = set()
    for image, ending in endings.items():
        file = image.with_name(image.stem + ending)
        files[image] = image.with_name(image.name + ending) if file in taken else file
        taken.add(file)
    return files
