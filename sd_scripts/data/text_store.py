"""Encoded captions, in memory or in npz files beside the pictures."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sd_scripts.data.caches import Arrays, claim_files, digest, write_arrays
from sd_scripts.data.dataset import Item
from sd_scripts.data.images import DAMAGED, UnreadablePicture


class TextInMemory:
    """Encoded captions kept as tensors, each caption once."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Tensor]] = {}

    def read(self, item: Item, caption: str) -> dict[str, Tensor]:
        return self.entries[caption]


class TextOnDisk:
    """Encoded captions in one file for each picture, and one more for each further caption it has in the plan."""

    def __init__(self, captions: Iterable[tuple[Item, str]], suffix: str):
        by_path: dict[Path, list[str]] = {}
        for item, caption in captions:
            if caption not in by_path.setdefault(item.path, []):
                by_path[item.path].append(caption)
        first = claim_files(dict.fromkeys(by_path, f"_{suffix}.npz"))
        self._files = {
            (path, caption): first[path]
            if place == 0
            else first[path].with_name(f"{first[path].stem}_{digest(caption)[:8]}.npz")
            for path, texts in by_path.items()
            for place, caption in enumerate(texts)
        }

    def file(self, item: Item, caption: str) -> Path:
        return self._files[item.path, caption]

    def read(self, item: Item, caption: str) -> dict[str, Tensor]:
        path = self.file(item, caption)
        try:
            with np.load(path) as arrays:
                return {name: torch.from_numpy(arrays[name]) for name in arrays.files if name != "fingerprint"}
        except DAMAGED as error:
            raise UnreadablePicture(path, error) from error

    def is_current(self, item: Item, caption: str, fingerprint: str) -> bool:
        """Whether the file was made from this caption. One without fingerprint does not tell, so it does not count."""
        path = self.file(item, caption)
        if not path.is_file():
            return False
        with np.load(path) as arrays:
            return "fingerprint" in arrays and str(arrays["fingerprint"]) == fingerprint

    def fits(self, item: Item, caption: str, fits: Callable[[Arrays], bool] | None) -> bool:
        """Whether there is a file, whoever made it, and its arrays are what `fits` asks for."""
        path = self.file(item, caption)
        if fits is None or not path.is_file():
            return path.is_file()
        with np.load(path) as arrays:
            return fits(arrays)

    def write(self, item: Item, caption: str, outputs: Mapping[str, Tensor], fingerprint: str) -> None:
        """In the field's form: numpy has no bfloat16, so float32 takes its place."""
        arrays = {name: _storable(tensor).numpy() for name, tensor in outputs.items()}
        write_arrays(self.file(item, caption), {**arrays, "fingerprint": np.array(fingerprint)})


def _storable(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def text_fingerprint(caption: str, encoder: str) -> str:
    """Of the words as the encoders read them, and the encoders."""
    return digest([caption, encoder])
