"""Encode every image of a plan once, before the first step."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from random import Random

import torch
from torch import Tensor

from sd_scripts.data.batch import stack_pixels
from sd_scripts.data.caches.cache_filling import Entry, fill
from sd_scripts.data.caches.caching import CacheJob, LatentLayout
from sd_scripts.data.caches.latent_store import FLIPPED, LatentsInMemory, LatentsOnDisk, LatentStore
from sd_scripts.data.plan.dataset import DataPlan, Item
from sd_scripts.data.preparing import prepare
from sd_scripts.data.read_ahead import read_ahead
from sd_scripts.data.sources.images import Augmentation, Pixels, UnreadableImage

EncodeImages = Callable[[Tensor], Tensor]
"""(B, 3, *S) float32 in -1..1 on the CPU -> latents (B, C, *S) on any device, in the dtype in which they are kept."""
EncodeConditions = Callable[[Tensor], Mapping[str, Tensor]]
"""The same pixels -> further tensors by name, batch first, that are cached with the latents."""
Prepared = tuple[Item, Pixels, Pixels | None]
"""An item with its pixels, (H, W, 3) or (F, H, W, 3), and opacity (H, W) in the bucket."""
READERS = 4
"""Threads that decode images while the encoder works."""
AHEAD_BYTES = 2**30
"""Pixels that are decoded ahead at most: a clip of 81 frames at 1280x720 has 224 MB."""


def cache_latents(
    plan: DataPlan,
    encode: EncodeImages,
    *,
    encoder_key: str,
    layout: LatentLayout,
    job: CacheJob,
    conditions: Sequence[str] = (),
    encode_conditions: EncodeConditions | None = None,
) -> LatentStore:
    """Encode training and validation images.

    `encoder_key` identifies the encoders and all that changes their output. `conditions` are the names of the tensors
    that `encode_conditions` returns. Unreadable images cause a warning; the loader replaces them.
    """
    augmentations = {item.subset.augmentation for item in plan.items}
    assert not any(each.color_aug or each.random_crop for each in augmentations), "preflight checks it"
    if any(each.face_crop_aug_range for each in augmentations):
        job.warn("face_crop_aug_range: has no effect on cached latents; images are centre-cropped")
    images = _distinct(plan.every_image())

    def encode_all(pixels: Tensor) -> Mapping[str, Tensor]:
        return {"latents": encode(pixels), **(encode_conditions(pixels) if encode_conditions and conditions else {})}

    entries = partial(_entries, encode=encode_all, job=job, has_frames=plan.has_frames)
    if not job.to_disk:
        return LatentsInMemory(entries(images, total=len(images)), conditions)
    disk = LatentsOnDisk(images, layout, encoder_key, conditions)
    images = disk.share(images, job)
    fill(disk, images, partial(entries, total=len(images)), job)
    return disk


def _entries(
    images: Sequence[Item], encode: EncodeConditions, job: CacheJob, *, total: int, has_frames: bool
) -> Iterator[tuple[Item, Entry]]:
    """Yield the entry of each readable image. Progress counts valid entries of `total` too."""
    done = total - len(images)
    job.progress(done, total)
    for batch in _prepared(images, job, has_frames=has_frames):
        yield from _encode([each for each in batch if not isinstance(each, UnreadableImage)], encode)
        done += len(batch)
        job.progress(done, total)


def _distinct(items: Iterable[Item]) -> list[Item]:
    """Return every image at every size once, with the augmentation that its latents are cached for: what any of its
    datasets needs, without random crops and colours."""
    merged: dict[object, Item] = {}
    for item in items:
        key = (item.source, item.fit.bucket.alone)
        first = merged.get(key, item)
        augmentation = Augmentation(
            flip_aug=first.subset.augmentation.flip_aug or item.subset.augmentation.flip_aug,
            alpha_mask=first.masked_by_alpha or item.masked_by_alpha,
            resize_interpolation=first.subset.augmentation.resize_interpolation,
        )
        merged[key] = replace(first, mask=None, subset=replace(first.subset, augmentation=augmentation))
    return list(merged.values())


def _prepared(images: Sequence[Item], job: CacheJob, *, has_frames: bool) -> Iterator[list[Prepared | UnreadableImage]]:
    """Yield batches of images of one size, decoded ahead by threads; warn about unreadable ones."""
    by_size: dict[object, list[Item]] = {}
    for item in images:
        by_size.setdefault(item.fit.bucket.alone, []).append(item)
    batches = [
        group[start : start + job.batch_size]
        for group in by_size.values()
        for start in range(0, len(group), job.batch_size)
    ]
    with ThreadPoolExecutor(READERS) as pool:
        decode = partial(_decode, has_frames=has_frames)
        decoded = read_ahead(pool, decode, chain.from_iterable(batches), _ahead(images, job.batch_size))
        for batch in batches:
            prepared = list(islice(decoded, len(batch)))
            for each in prepared:
                if isinstance(each, UnreadableImage):
                    job.warn(f"{each}; another image of its bucket is used instead")
            yield prepared


def _ahead(images: Sequence[Item], batch_size: int) -> int:
    """Return how many items are decoded ahead: all of them are in memory."""
    largest = max((3 * item.fit.bucket.alone.pixels for item in images), default=1)
    return max(1, min(READERS * batch_size, AHEAD_BYTES // largest))


def _decode(item: Item, *, has_frames: bool) -> Prepared | UnreadableImage:
    try:
        return item, *prepare(item, Random(0), has_frames=has_frames)
    except UnreadableImage as error:
        return error


def _encode(images: Sequence[Prepared], encode: EncodeConditions) -> Iterator[tuple[Item, Entry]]:
    if not images:
        return
    items = [item for item, _, _ in images]
    pixels = stack_pixels([each for _, each, _ in images])
    encoded = {name: _finite(tensor, items) for name, tensor in encode(pixels).items()}
    flipped: dict[str, Tensor] = {}
    if any(item.subset.augmentation.flip_aug for item in items):
        flipped = {f"{name}{FLIPPED}": _finite(tensor, items) for name, tensor in encode(pixels.flip(-1)).items()}
    for row, (item, _, alpha) in enumerate(images):
        both = encoded | flipped if item.subset.augmentation.flip_aug else encoded
        entry = {name: tensor[row].clone() for name, tensor in both.items()}  # a view would keep the batch alive
        if alpha is not None:
            entry["alpha_mask"] = torch.from_numpy(alpha)
        yield item, entry


def _finite(latents: Tensor, items: Sequence[Item]) -> Tensor:
    latents = latents.detach().cpu()
    for row, item in enumerate(items):
        if not torch.isfinite(latents[row]).all():
            raise ValueError(f"vae: the latents of {item.path} are not finite; turn on no_half_vae")
    return latents
