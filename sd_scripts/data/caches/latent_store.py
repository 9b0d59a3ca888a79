"""Store latents in memory, or in files next to the images.

An entry is for one image at one size. It has `latents` (C, *S) and the family's conditions; for flip_aug
`latents_flipped` and so on, those of the flipped image; for alpha_mask `alpha_mask`, the opacity (H, W) in the bucket.
Tensor names in files end with the size of the latents, such as `_128x128`, so that several sizes of an image share a
file. The npz files of other trainers are read with these names and without.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sd_scripts.data.caches.cache_files import (
    CACHE_KEY,
    CacheFile,
    DamagedCache,
    digest,
    files_of,
    open_cache,
    pixels_digest,
    require_finite,
    write_cache,
)
from sd_scripts.data.caches.cache_filling import DiskCache, Entry
from sd_scripts.data.caches.caching import SUFFIX, LatentLayout, claim_files
from sd_scripts.data.plan.buckets import crop_ltrb
from sd_scripts.data.plan.dataset import Item
from sd_scripts.data.sources.images import Pixels, UnreadableImage

FLIPPED = "_flipped"
"""Ends the names of tensors of the flipped image."""


@dataclass(frozen=True, kw_only=True)
class CachedSample:
    """What the cache has of an image, flipped or not."""

    latents: Tensor
    """(C, *S) in their encoder's dtype."""
    opacity: Pixels | None
    """(H, W), never flipped; None unless it is the mask."""
    conditions: dict[str, Tensor]


class LatentsInMemory:
    """Latents kept as tensors."""

    def __init__(self, entries: Iterable[tuple[Item, Entry]], conditions: Sequence[str] = ()):
        self._entries = {(item.source, item.fit.bucket.alone): entry for item, entry in entries}
        self._conditions = conditions

    def read(self, item: Item, *, flipped: bool) -> CachedSample:
        """Return the entry as LatentsOnDisk does."""
        entry = self._entries.get((item.source, item.fit.bucket.alone))
        if entry is None:
            raise UnreadableImage(item.path, "it has no cached latents")
        return _pick(entry, "", item, self._conditions, flipped)


class LatentsOnDisk(DiskCache[Item]):
    """Latents in one file per image or part of a clip, for all its sizes. `encoder_key` identifies the VAE and all that
    changes its output."""

    def __init__(self, items: Iterable[Item], layout: LatentLayout, encoder_key: str, conditions: Sequence[str] = ()):
        self._layout = layout
        self._encoder_key = encoder_key
        self._conditions = conditions
        self._files = claim_files(map(self._name, items))

    def file(self, item: Item) -> Path:
        return self._files[self._name(item)]

    def _name(self, item: Item) -> tuple[Path, str]:
        """Return the image and the ending of an item's file: each part of a clip has its own."""
        part = f"_{item.span}" if item.span else ""
        return item.path, f"{part}_{item.size[0]:04d}x{item.size[1]:04d}_{self._layout.suffix}{SUFFIX}"

    def find(self, item: Item) -> Path | None:
        """Return the file to read: ours if it has this size, else an npz of another trainer."""
        own = self.file(item)
        if own.is_file() and self._has_size(own, item):
            return own
        npz = [own.with_suffix(".npz")]
        if self._layout.named_after_image:
            npz.append(item.path.with_suffix(".npz"))
        return next((path for path in npz if path.is_file()), None)

    def images(self, item: Item) -> Sequence[Path]:
        return files_of(item.path)

    def settings_key(self, item: Item) -> list[object]:
        augmentation = item.subset.augmentation
        wanted = [self._size(item), augmentation.flip_aug, augmentation.alpha_mask]
        return [*wanted, *self._conditions, *_resize_key(item), self._encoder_key]

    def _has_size(self, own: Path, item: Item) -> bool:
        try:
            with open_cache(own) as tensors:
                return "latents" + self._size(item) in tensors
        except DamagedCache:  # reported where it is checked or read
            return True

    def read(self, item: Item, *, flipped: bool) -> CachedSample:
        """Return the entry of an item; may raise UnreadableImage."""
        try:
            with open_cache(self.find(item) or self.file(item)) as tensors:
                entry = _pick(tensors, self._written_size(item, tensors), item, self._conditions, flipped)
                found = tuple(entry.latents.shape)
                if found != self._shape(item):  # skip_cache_check trusted the file
                    raise ValueError(f"its latents have shape {found}; turn off skip_cache_check")
        except DamagedCache as error:
            raise UnreadableImage(self.file(item), error.why) from error
        return entry

    def is_valid(self, item: Item) -> bool:
        """Return whether the entry is what would be encoded now, for the item's augmentation too; raise DamagedCache if
        the file is broken.

        An entry without a cache key is from another program: it is valid if its sizes match image and bucket.
        """
        path = self.find(item)
        if path is None:
            return False
        with open_cache(path) as tensors:
            size = self._written_size(item, tensors)
            shapes = {name + size: shape for name, shape in self._shapes(item).items()}
            conditions = [name + size for name in self._condition_names(item)]
            if any(name not in tensors for name in (*shapes, *conditions)):
                return False
            written = tensors.cache_key(size)
            if written is None and not _same_size_and_crop(tensors, size, item):
                return False
            # without the image there is no key to compare
            if written is not None and self._cache_key(item) not in (written, None):
                return False
            entry = {name: tensors[name] for name in shapes}
            require_finite((*entry.values(), *(tensors[name] for name in conditions)))
            return all(tuple(entry[name].shape) == shape for name, shape in shapes.items())

    def write(self, item: Item, entry: Entry) -> None:
        """Add or replace the entry of one size and keep other sizes; skip an image that no longer exists."""
        cache_key = self._cache_key(item)
        if cache_key is None:
            return
        size = self._size(item)
        tensors, keys = _other_sizes(self.file(item), size)
        tensors |= {name + size: tensor for name, tensor in entry.items()}
        write_cache(self.file(item), tensors, {**keys, CACHE_KEY + size: cache_key}, option="cache_latents_to_disk")

    def _cache_key(self, item: Item) -> str | None:
        """Return the cache key from image, resize, crop and encoder; None if the image file is gone.

        With alpha_mask the colours under transparency are kept; without, they are white.
        """
        try:
            content = pixels_digest(item.path)
        except FileNotFoundError:
            return None
        parts = ["content", content]
        if item.subset.augmentation.alpha_mask:
            parts.append("alpha")
        return digest([*parts, *_resize_key(item), self._encoder_key])

    def _shapes(self, item: Item) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of the entry."""
        augmentation = item.subset.augmentation
        shapes = {"latents": self._shape(item)}
        if augmentation.flip_aug:
            shapes["latents" + FLIPPED] = self._shape(item)
        if augmentation.alpha_mask:
            shapes["alpha_mask"] = item.fit.bucket.size[::-1]
        return shapes

    def _condition_names(self, item: Item) -> list[str]:
        """Return the names of the conditions of the entry, whose shapes the family knows."""
        endings = ("", FLIPPED) if item.subset.augmentation.flip_aug else ("",)
        return [name + ending for name in self._conditions for ending in endings]

    def _shape(self, item: Item) -> tuple[int, ...]:
        return self._layout.shape(item.fit.bucket)

    def _size(self, item: Item) -> str:
        return "_" + "x".join(map(str, self._shape(item)[1:]))

    def _written_size(self, item: Item, tensors: CacheFile) -> str:
        """Return the ending of names in this file: the size, or nothing."""
        size = self._size(item)
        return size if "latents" + size in tensors else ""


LatentStore = LatentsInMemory | LatentsOnDisk


def _resize_key(item: Item) -> list[object]:
    """Return the values that determine the resize and crop of an image."""
    bucket = item.fit.bucket
    times = [item.span.times] if item.span else []
    return [bucket.sides, item.fit.resized, item.subset.augmentation.resize_interpolation, *times]


def _same_size_and_crop(tensors: CacheFile, size: str, item: Item) -> bool:
    """Return whether an entry of another program was made from an image of this size with this crop."""
    original, crop = tensors.get("original_size" + size), tensors.get("crop_ltrb" + size)
    if original is None or tuple(int(side) for side in original) != item.size:
        return False
    return crop is not None and np.allclose(crop, crop_ltrb(item.fit.bucket.size, item.size), atol=1)


def _pick(tensors: Entry, size: str, item: Item, conditions: Sequence[str], flipped: bool) -> CachedSample:
    """Return the tensors that a step reads from the entry whose names end with `size`."""
    ending = (FLIPPED if flipped else "") + size
    return CachedSample(
        latents=tensors["latents" + ending],
        opacity=_opacity(tensors["alpha_mask" + size]) if item.masked_by_alpha else None,
        conditions={name: tensors[name + ending] for name in conditions},
    )


def _opacity(alpha: Tensor) -> Pixels:
    """Return 8-bit opacity; npz files store it as 0..1."""
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
