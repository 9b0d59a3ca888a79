"""Store latents in memory, or in files beside the images.

Tensor names end with the size of the latents, such as `_128x128`, so that several sizes of an image share a file. The
npz files of other trainers are read with these names and without.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sd_scripts.data.buckets import Extent, crop_ltrb
from sd_scripts.data.cache_files import (
    CACHE_KEY,
    CacheFile,
    DamagedCache,
    digest,
    open_cache,
    pixels_digest,
    write_cache,
)
from sd_scripts.data.caches import SUFFIX, LatentLayout, claim_files
from sd_scripts.data.dataset import Item
from sd_scripts.data.images import DECODER, Pixels, UnreadableImage, is_decoded_differently
from sd_scripts.data.seen_files import Stamp, is_settled

Entry = Mapping[str, Tensor]
"""What is cached of one image at one size: `latents` (C, *S); for flip_aug `latents_flipped`, those of the flipped
image; for alpha_mask `alpha_mask`, the opacity (H, W) in the bucket."""


class LatentsInMemory:
    """Latents kept as tensors."""

    def __init__(self) -> None:
        self.entries: dict[tuple[Path, Extent], Entry] = {}

    def read(self, item: Item, *, flipped: bool) -> tuple[Tensor, Pixels | None]:
        """Return latents and opacity as LatentsOnDisk does."""
        entry = self.entries.get((item.path, item.fit.bucket.alone))
        if entry is None:
            raise UnreadableImage(item.path, "it has no cached latents")
        return _pick(entry, "", item, flipped)


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

    def has_file(self, item: Item) -> bool:
        """Return whether there is a file of this size, whatever is in it."""
        return self.find(item) is not None

    def _has_size(self, own: Path, item: Item) -> bool:
        try:
            with open_cache(own) as tensors:
                return "latents" + self._size(item) in tensors
        except DamagedCache:  # reported where it is checked or read
            return True

    def read(self, item: Item, *, flipped: bool) -> tuple[Tensor, Pixels | None]:
        """Return latents (C, *S) in their encoder's dtype and, where it is the mask, the unflipped opacity; may raise
        UnreadableImage."""
        try:
            with open_cache(self.find(item) or self.file(item)) as tensors:
                latents, alpha = _pick(tensors, self._written_size(item, tensors), item, flipped)
                if tuple(latents.shape) != self._shape(item):  # skip_cache_check trusted the file
                    raise ValueError(f"its latents have shape {tuple(latents.shape)}; turn off skip_cache_check")
        except DamagedCache as error:
            raise UnreadableImage(self.file(item), error.why) from error
        return latents, alpha

    def is_current(self, item: Item, encoder: str) -> bool:
        """Return whether the file holds what `encoder` would produce now for the item and its augmentation; raise
        DamagedCache if it is broken.

        Everything that a step will read is read here, while the encoder is still loaded. An entry without a cache key
        is from another program: it is current if its sizes match image and bucket.
        """
        path, wanted = self.find(item), item.subset.augmentation
        if path is None:
            return False
        more = [*["latents_flipped"] * wanted.flip_aug, *["alpha_mask"] * wanted.alpha_mask]
        with open_cache(path) as tensors:
            size = self._written_size(item, tensors)
            names = [name + size for name in ("latents", *more)]
            if any(name not in tensors for name in names):
                return False
            written = tensors.cache_key(size)
            if written is None and not _same_size_and_crop(tensors, size, item):
                return False
            # without the image there is no key to compare
            if written and item.path.is_file() and not _is_made_from(written, item, encoder):
                return False
            return self._is_valid(tensors, names, item)

    def evidence(self, item: Item, encoder: str, stamps: Mapping[Path, Stamp]) -> str | None:
        """Return what tells, without reading image and file, that is_current would find the same as before; None if
        one of them is gone or was just changed."""
        image, cache = stamps.get(item.path), stamps.get(self.file(item))
        if image is None or cache is None or not is_settled(image):
            return None
        wanted = item.subset.augmentation
        asked = [self._size(item), wanted.flip_aug, wanted.alpha_mask, *_resize_key(item), encoder, DECODER]
        return digest([str(self.file(item).absolute()), cache, str(item.path.absolute()), image, *asked])

    def _is_valid(self, tensors: CacheFile, names: Sequence[str], item: Item) -> bool:
        found = {name: tensors[name] for name in names}
        if any(not torch.isfinite(tensor).all() for tensor in found.values()):
            raise ValueError("it contains non-finite values")
        height_width = item.fit.bucket.size[::-1]
        shapes = {name: height_width if name.startswith("alpha_mask") else self._shape(item) for name in names}
        return all(tuple(tensor.shape) == shapes[name] for name, tensor in found.items())

    def write(self, item: Item, entry: Entry, cache_key: str) -> None:
        """Add or replace the entry of one size, keeping those of other sizes."""
        size = self._size(item)
        tensors, keys = _other_sizes(self.file(item), size)
        tensors |= {name + size: tensor for name, tensor in entry.items()}
        write_cache(self.file(item), tensors, {**keys, CACHE_KEY + size: cache_key}, option="cache_latents_to_disk")

    def _shape(self, item: Item) -> tuple[int, ...]:
        return self._layout.shape(item.fit.bucket)

    def _size(self, item: Item) -> str:
        return "_" + "x".join(map(str, self._shape(item)[1:]))

    def _written_size(self, item: Item, tensors: CacheFile) -> str:
        """Return what names in this file end with: the size, or nothing."""
        size = self._size(item)
        return size if "latents" + size in tensors else ""


LatentStore = LatentsInMemory | LatentsOnDisk


def latent_cache_key(item: Item, encoder: str) -> str | None:
    """Return the cache key from image file, resize, crop and encoder; None if the image file is gone.

    With alpha_mask the colours under transparency are kept; without, they are white.
    """
    try:
        content = pixels_digest(item.path)
    except FileNotFoundError:
        return None
    alpha = ["alpha"] * item.subset.augmentation.alpha_mask
    return digest(["content", content, *alpha, *_resize_key(item), encoder])


def _is_made_from(written: str, item: Item, encoder: str) -> bool:
    if written == latent_cache_key(item, encoder):
        return True
    # earlier versions used the image's mtime instead of its content
    stat = item.path.stat()
    earlier = digest([stat.st_size, stat.st_mtime_ns, *_resize_key(item), encoder])
    return written == earlier and not is_decoded_differently(item.path, alpha=item.subset.augmentation.alpha_mask)


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


def _pick(tensors: Entry, size: str, item: Item, flipped: bool) -> tuple[Tensor, Pixels | None]:
    """Return what a step needs of the entry whose names end with `size`."""
    latents = tensors[("latents_flipped" if flipped else "latents") + size]
    return latents, _opacity(tensors["alpha_mask" + size]) if item.masked_by_alpha else None


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
