"""Encoded captions, in memory or in npz files beside the images."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sd_scripts.data.cache_files import Arrays, DamagedCache, digest, open_arrays, write_arrays
from sd_scripts.data.caches import claim_files
from sd_scripts.data.dataset import Item
from sd_scripts.data.images import UnreadableImage


class TextInMemory:
    """Encoded captions kept as tensors, each caption once."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Tensor]] = {}

    def read(self, item: Item, caption: str) -> dict[str, Tensor]:
        return self.entries[caption]


class TextOnDisk:
    """Encoded captions, one file per image, plus one for each further caption that the image has in the plan."""

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
            with open_arrays(path) as arrays:
                return {name: torch.from_numpy(array) for name, array in arrays.items() if name != "fingerprint"}
        except DamagedCache as error:
            raise UnreadableImage(path, error.why) from error

    def is_current(self, item: Item, caption: str, cache_key: str) -> bool:
        """Return whether the file's cache key matches; raise DamagedCache if it is broken.

        A file without a cache key is not current.
        """
        path = self.file(item, caption)
        if not path.is_file():
            return False
        with open_arrays(path) as arrays:
            if "fingerprint" not in arrays or str(arrays["fingerprint"]) != cache_key:
                return False
            for array in arrays.values():  # read everything now: later the encoders are unloaded
                if array.dtype.kind == "f" and not np.isfinite(array).all():
                    raise ValueError("it contains non-finite values")
            return True

    def fits(self, item: Item, caption: str, fits: Callable[[Arrays], bool] | None) -> bool:
        """Return whether the file exists and, if `fits` is given, passes it; any program may have written it."""
        path = self.file(item, caption)
        if fits is None or not path.is_file():
            return path.is_file()
        with open_arrays(path) as arrays:
            return fits(arrays)

    def write(self, item: Item, caption: str, outputs: Mapping[str, Tensor], cache_key: str) -> None:
        """Write sd-scripts' format; bfloat16, which NumPy lacks, becomes float32."""
        arrays = {name: _storable(tensor).numpy() for name, tensor in outputs.items()}
        write_arrays(self.file(item, caption), {**arrays, "fingerprint": np.array(cache_key)})


def _storable(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def text_cache_key(caption: str, encoder: str) -> str:
    """Return the cache key of a caption, as processed, and the encoders."""
    return digest([caption, encoder])
