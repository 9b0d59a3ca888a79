"""What caches of latents and of captions share: what the loader asks of them, and the names of their files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor

from sd_scripts.data.dataset import Item
from sd_scripts.data.images import Pixels


class LatentStore(Protocol):
    """Where the loader finds latents."""

    def read(self, item: Item, *, flipped: bool) -> tuple[Tensor, Pixels | None]:
        """Latents (C, H/8, W/8) float32, and the opacity of an alpha_mask subset, not flipped; UnreadableImage."""
        ...


class TextStore(Protocol):
    """Where the loader finds encoded captions."""

    def read(self, item: Item, caption: str) -> dict[str, Tensor]:
        """The outputs of the text encoders for one image, by name; UnreadableImage where there is none."""
        ...


def claim_files(endings: Mapping[Path, str]) -> dict[Path, Path]:
    """A file for each image, named after its stem; `a.jpg` beside `a.png` takes its whole name."""
    files: dict[Path, Path] = {}
    taken: set[Path] = set()
    for image, ending in endings.items():
        file = image.with_name(image.stem + ending)
        files[image] = image.with_name(image.name + ending) if file in taken else file
        taken.add(file)
    return files
