"""Store latents in memory, or in npz files beside the images.

We read array names with and without the `_{height}x{width}` of the latents, as sd-scripts has used both, and write
them with it, so that several sizes of an image share a file.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sd_scripts.data.buckets import Extent, crop_ltrb
from sd_scripts.data.cache_files import Arrays, DamagedCache, content_digest, digest, open_arrays, write_arrays
from sd_scripts.data.caches import claim_files
from sd_scripts.data.dataset import Item
from sd_scripts.data.images import Pixels, UnreadableImage, is_decoded_differently

PIXELS_PER_LATENT = 8
UNSUFFIXED = "sdxl"
"""Suffix of the family whose cache files once had none."""


@dataclass(frozen=True, kw_only=True)
class LatentEntry:
    """The cached latents of one image at one size."""

    latents: Tensor
    flipped: Tensor | None = None
    """The latents of the flipped image, for flip_aug."""
    alpha: Pixels | None = None
    """(H, W): opacity in the bucket, for alpha_mask."""


class LatentsInMemory:
    """Latents kept as tensors."""

    def __init__(self) -> None:
        self.entries: dict[tuple[Path, Extent], LatentEntry] = {}

    def read(self, item: Item, *, flipped: bool) -> tuple[Tensor, Pixels | None]:
        entry = self.entries.get((item.path, item.fit.bucket))
        if entry is None:
            raise UnreadableImage(item.path, "it has no cached latents")
        latents = entry.flipped if flipped else entry.latents
        assert latents is not None, "cached without flip_aug"
        return latents, entry.alpha if item.subset.augmentation.alpha_mask else None


class LatentsOnDisk:
    """Latents in one file per image, which holds all its sizes."""

    def __init__(self, items: Iterable[Item], suffix: str, channels: int):
        self._suffix, self._channels = suffix, channels
        self._files = claim_files({item.path: f"_{item.size[0]:04d}x{item.size[1]:04d}_{suffix}.npz" for item in items})

    def file(self, item: Item) -> Path:
        return self._files[item.path]

    def find(self, item: Item) -> Path | None:
        """Return the file to read: ours, or one that older SDXL trainers named after the image alone."""
        old = [item.path.with_suffix(".npz")] if self._suffix == UNSUFFIXED else []
        return next((path for path in (self.file(item), *old) if path.is_file()), None)

    def read(self, item: Item, *, flipped: bool) -> tuple[Tensor, Pixels | None]:
        try:
            with open_arrays(self.find(item) or self.file(item)) as arrays:
                name = _key("latents_flipped" if flipped else "latents", item, arrays)
                latents = torch.from_numpy(arrays[name].astype(np.float32, copy=False))
                if not self._has_expected_shape(latents, item, name):  # skip_cache_check trusted the file
                    raise ValueError(f"its latents have shape {tuple(latents.shape)}; turn off skip_cache_check")
                wants_alpha = item.subset.augmentation.alpha_mask and item.mask is None
                alpha = np.rint(arrays[_key("alpha_mask", item, arrays)] * 255) if wants_alpha else None
        except DamagedCache as error:
            raise UnreadableImage(self.file(item), error.why) from error
        return latents, None if alpha is None else alpha.astype(np.uint8)

    def is_current(self, item: Item, encoder: str, *, flip: bool, alpha: bool) -> bool:
        """Return whether the file holds what `encoder` would produce now; raise DamagedCache if it is broken.

        Everything that a step will read is read here, while the encoder is still loaded. An entry without a cache key
        is from another program: it is current if its sizes match image and bucket.
        """
        path = self.find(item)
        if path is None:
            return False
        with open_arrays(path) as arrays:
            keys = [
                _key(name, item, arrays) for name in ("latents", *["latents_flipped"] * flip, *["alpha_mask"] * alpha)
            ]
            if any(key not in arrays for key in keys):
                return False
            written = arrays.get(_key("fingerprint", item, arrays))
            if written is None or not item.path.is_file():  # without the image there is no key to compare
                return self._is_valid(arrays, keys, item) and _same_size_and_crop(arrays, item)
            return _is_made_from(str(written), item, encoder, alpha=alpha) and self._is_valid(arrays, keys, item)

    def _is_valid(self, arrays: Arrays, keys: Sequence[str], item: Item) -> bool:
        found = {key: arrays[key] for key in keys}
        if any(not np.isfinite(array).all() for array in found.values()):
            raise ValueError("it contains non-finite values")
        return all(self._has_expected_shape(array, item, key) for key, array in found.items())

    def _has_expected_shape(self, array: NDArray[Any] | Tensor, item: Item, name: str) -> bool:
        wanted = item.fit.bucket.size[::-1] if name.startswith("alpha_mask") else (self._channels, *_latent_size(item))
        return tuple(array.shape) == wanted

    def write(self, item: Item, entry: LatentEntry, cache_key: str) -> None:
        """Add or replace the entry of one size, keeping those of other sizes."""
        size = _size_suffix(item)
        arrays: dict[str, Any] = {
            "latents": entry.latents.numpy(),
            "original_size": np.array(item.size),
            "crop_ltrb": np.array(crop_ltrb(item.fit.bucket.size, item.size)),
            "fingerprint": np.array(cache_key),
        }
        if entry.flipped is not None:
            arrays["latents_flipped"] = entry.flipped.numpy()
        if entry.alpha is not None:
            arrays["alpha_mask"] = entry.alpha.astype(np.float32) / 255
        others = {name: array for name, array in _other_sizes(self.file(item)).items() if not name.endswith(size)}
        write_arrays(self.file(item), others | {name + size: array for name, array in arrays.items()})


def latent_cache_key(item: Item, encoder: str, *, alpha: bool) -> str | None:
    """Return the cache key from image file, resize, crop and encoder; None if the image file is gone.

    With `alpha` the colours under transparency are kept; without, they are white.
    """
    try:
        content = content_digest(item.path)
    except FileNotFoundError:
        return None
    return digest(["content", content, *["alpha"] * alpha, *_resize_key(item), encoder])


def _is_made_from(written: str, item: Item, encoder: str, *, alpha: bool) -> bool:
    if written == latent_cache_key(item, encoder, alpha=alpha):
        return True
    # earlier versions used the image's mtime instead of its content
    stat = item.path.stat()
    earlier = digest([stat.st_size, stat.st_mtime_ns, *_resize_key(item), encoder])
    return written == earlier and not is_decoded_differently(item.path, alpha=alpha)


def _resize_key(item: Item) -> list[object]:
    """Return what determines the resize and crop of an image."""
    return [item.fit.bucket.size, item.fit.resized, item.subset.augmentation.resize_interpolation]


def _latent_size(item: Item) -> tuple[int, int]:
    return item.fit.bucket.height // PIXELS_PER_LATENT, item.fit.bucket.width // PIXELS_PER_LATENT


def _size_suffix(item: Item) -> str:
    height, width = _latent_size(item)
    return f"_{height}x{width}"


def _key(name: str, item: Item, arrays: Arrays) -> str:
    """Return the array's name as this file spells it, with or without the size."""
    size = _size_suffix(item)
    return name + size if "latents" + size in arrays else name


def _same_size_and_crop(arrays: Arrays, item: Item) -> bool:
    size, crop = arrays.get(_key("original_size", item, arrays)), arrays.get(_key("crop_ltrb", item, arrays))
    if size is None or tuple(int(side) for side in size) != item.size:
        return False
    return crop is not None and np.allclose(crop, crop_ltrb(item.fit.bucket.size, item.size), atol=1)


def _other_sizes(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays with a size in their name; none if the file is missing or broken."""
    if not path.is_file():
        return {}
    try:
        with open_arrays(path) as arrays:
            return {name: array for name, array in arrays.items() if re.search(r"_\d+x\d+$", name)}
    except DamagedCache:
        return {}
