"""Encoded captions, in memory or in files beside the images."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from sd_scripts.data.cache_files import CACHE_KEY, SUFFIX, CacheFile, DamagedCache, digest, open_cache, write_cache
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
        first = claim_files(dict.fromkeys(by_path, f"_{suffix}{SUFFIX}"))
        self._files = {
            (path, caption): first[path]
            if place == 0
            else first[path].with_name(f"{first[path].stem}_{digest(caption)[:8]}{SUFFIX}")
            for path, texts in by_path.items()
            for place, caption in enumerate(texts)
        }

    def file(self, item: Item, caption: str) -> Path:
        """Return the file that is written."""
        return self._files[item.path, caption]

    def find(self, item: Item, caption: str) -> Path | None:
        """Return the file to read: ours, or an npz of an earlier version or another trainer."""
        own = self.file(item, caption)
        return next((path for path in (own, own.with_suffix(".npz")) if path.is_file()), None)

    def read(self, item: Item, caption: str) -> dict[str, Tensor]:
        path = self.find(item, caption) or self.file(item, caption)
        try:
            with open_cache(path) as tensors:
                return dict(tensors)
        except DamagedCache as error:
            raise UnreadableImage(path, error.why) from error

    def is_current(self, item: Item, caption: str, cache_key: str) -> bool:
        """Return whether the file's cache key matches; raise DamagedCache if it is broken.

        A file without a cache key is not current.
        """
        path = self.find(item, caption)
        if path is None:
            return False
        with open_cache(path) as tensors:
            if tensors.cache_key() != cache_key:
                return False
            for tensor in tensors.values():  # read everything now: later the encoders are unloaded
                if not torch.isfinite(tensor).all():
                    raise ValueError("it contains non-finite values")
            return True

    def fits(self, item: Item, caption: str, fits: Callable[[CacheFile], bool] | None) -> bool:
        """Return whether the file exists and, if `fits` is given, passes it; any program may have written it."""
        path = self.find(item, caption)
        if fits is None or path is None:
            return path is not None
        with open_cache(path) as tensors:
            return fits(tensors)

    def write(self, item: Item, caption: str, outputs: Mapping[str, Tensor], cache_key: str) -> None:
        write_cache(self.file(item, caption), outputs, {CACHE_KEY: cache_key})


def text_cache_key(caption: str, encoder: str) -> str:
    """Return the cache key of a caption, as processed, and the encoders."""
    return digest([caption, encoder])
