"""Store latents in memory, or in files beside the images.

Tensor names end with the size of the latents, such as `_128x128`, so that several sizes of an image share a file. The
npz files of other trainers are read with these names and without.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sd_scripts.data.buckets import Extent, crop_ltrb
from sd_scripts.data.cache_files import (
    CACHE_KEY,
    SUFFIX,
    CacheFile,
    DamagedCache,
    content_digest,
    digest,
    open_cache,
    write_cache,
)
from sd_scripts.data.caches import LatentLayout, claim_files
from sd_scripts.data.dataset import Item
from sd_scripts.data.images import Pixels, UnreadableImage, is_decoded_differently


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

    def __init__(self, items: Iterable[Item], layout: LatentLayout):
        self._layout = layout
        endings = {item.path: f"_{item.size[0]:04d}x{item.size[1]:04d}_{layout.suffix}{SUFFIX}" for item in items}
        self._files = claim_files(endings)

    def file(self, item: Item) -> Path:
        """Return the file that is written."""
        return self._files[item.path]

    def find(self, item: Item) -> Path | None:
        """Return the file to read: ours if it has this size, else an npz of an earlier version or another trainer."""
        own = self.file(item)
        if own.is_file() and self._has_size(own, item):
            return own
        npz = [own.with_suffix(".npz"), *[item.path.with_suffix(".npz")] * self._layout.named_after_image]
        return next((path for path in npz if path.is_file()), None)

    def _has_size(self, own: Path, item: Item) -> bool:
        try:
            with open_cache(own) as tensors:
                return "latents" + self._size(item) in tensors
        except DamagedCache:  # reported where it is checked or read
            return True

    def read(self, item: Item, *, flipped: bool) -> tuple[Tensor, Pixels | None]:
        try:
            with open_cache(self.find(item) or self.file(item)) as tensors:
                size = self._written_size(item, tensors)
                latents = tensors[("latents_flipped" if flipped else "latents") + size]
                if tuple(latents.shape) != self._shape(item):  # skip_cache_check trusted the file
                    raise ValueError(f"its latents have shape {tuple(latents.shape)}; turn off skip_cache_check")
                wants_alpha = item.subset.augmentation.alpha_mask and item.mask is None
                alpha = _opacity(tensors["alpha_mask" + size]) if wants_alpha else None
        except DamagedCache as error:
            raise UnreadableImage(self.file(item), error.why) from error
        return latents, alpha

    def is_current(self, item: Item, encoder: str, *, flip: bool, alpha: bool) -> bool:
        """Return whether the file holds what `encoder` would produce now; raise DamagedCache if it is broken.

        Everything that a step will read is read here, while the encoder is still loaded. An entry without a cache key
        is from another program: it is current if its sizes match image and bucket.
        """
        path = self.find(item)
        if path is None:
            return False
        with open_cache(path) as tensors:
            size = self._written_size(item, tensors)
            names = [name + size for name in ("latents", *["latents_flipped"] * flip, *["alpha_mask"] * alpha)]
            if any(name not in tensors for name in names):
                return False
            written = tensors.cache_key(size)
            if written is None and not _same_size_and_crop(tensors, size, item):
                return False
            # without the image there is no key to compare
            if written and item.path.is_file() and not _is_made_from(written, item, encoder, alpha=alpha):
                return False
            return self._is_valid(tensors, names, item)

    def _is_valid(self, tensors: CacheFile, names: Sequence[str], item: Item) -> bool:
        found = {name: tensors[name] for name in names}
        if any(not torch.isfinite(tensor).all() for tensor in found.values()):
            raise ValueError("it contains non-finite values")
        height_width = item.fit.bucket.size[::-1]
        shapes = {name: height_width if name.startswith("alpha_mask") else self._shape(item) for name in names}
        return all(tuple(tensor.shape) == shapes[name] for name, tensor in found.items())

    def write(self, item: Item, entry: LatentEntry, cache_key: str) -> None:
        """Add or replace the entry of one size, keeping those of other sizes."""
        size = self._size(item)
        tensors, keys = _other_sizes(self.file(item), size)
        tensors["latents" + size] = entry.latents
        if entry.flipped is not None:
            tensors["latents_flipped" + size] = entry.flipped
        if entry.alpha is not None:
            tensors["alpha_mask" + size] = torch.from_numpy(entry.alpha)
        write_cache(self.file(item), tensors, {**keys, CACHE_KEY + size: cache_key})

    def _shape(self, item: Item) -> tuple[int, ...]:
        return self._layout.shape(item.fit.bucket)

    def _size(self, item: Item) -> str:
        return "_" + "x".join(map(str, self._shape(item)[1:]))

    def _written_size(self, item: Item, tensors: CacheFile) -> str:
        """Return what names in this file end with: the size, or nothing."""
        size = self._size(item)
        return size if "latents" + size in tensors else ""


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
    bucket = item.fit.bucket
    extent = bucket.size if bucket.frames == 1 else (*bucket.size, bucket.frames)
    return [extent, item.fit.resized, item.subset.augmentation.resize_interpolation]


def _same_size_and_crop(tensors: CacheFile, size: str, item: Item) -> bool:
    """Return whether an entry of another program was made from an image of this size with this crop."""
    original, crop = tensors.get("original_size" + size), tensors.get("crop_ltrb" + size)
    if original is None or tuple(int(side) for side in original) != item.size:
        return False
    return crop is not None and np.allclose(crop, crop_ltrb(item.fit.bucket.size, item.size), atol=1)


def _opacity(alpha: Tensor) -> Pixels:
    """Return 8-bit opacity; npz files hold it as 0..1."""
    return (alpha if alpha.dtype == torch.uint8 else (alpha * 255).round().to(torch.uint8)).numpy()


def _other_sizes(path: Path, size: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and cache keys of sizes other than `size`; none if the file is missing or broken."""
    if not path.is_file():
        return {}, {}
    try:
        with open_cache(path) as file:
            tensors = {name: file[name] for name in file if not name.endswith(size)}
            sizes = {match[0] for name in tensors if (match := re.search(r"_\d+(x\d+)+$", name))}
            return tensors, {CACHE_KEY + each: key for each in sizes if (key := file.cache_key(each))}
    except DamagedCache:
        return {}, {}
