"""Encode every image of a plan once, before the first step."""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
from sd_scripts.data.caches.latent_store import LatentsInMemory, LatentsOnDisk, LatentStore
from sd_scripts.data.plan.dataset import DataPlan, Item
from sd_scripts.data.read_ahead import read_ahead
from sd_scripts.data.sources.images import Augmentation, Pixels, UnreadableImage, prepare_image

EncodeImages = Callable[[Tensor], Tensor]
"""(B, 3, *S) float32 in -1..1 on the CPU -> latents (B, C, *S) on any device, in the dtype in which they are kept."""
Prepared = tuple[Item, Pixels, Pixels | None]
"""An image with its pixels (H, W, 3) and opacity (H, W) in the bucket."""
READERS = 4
"""Threads that decode images while the encoder works."""


def cache_latents(
    plan: DataPlan, encode: EncodeImages, *, encoder_key: str, layout: LatentLayout, job: CacheJob
) -> LatentStore:
    """Encode training and validation images.

    `encoder_key` identifies the VAE and all that changes its output. Unreadable images cause a warning; the loader
    replaces them.
    """
    augmentations = {item.subset.augmentation for item in plan.items}
    assert not any(each.color_aug or each.random_crop for each in augmentations), "preflight checks it"
    if any(each.face_crop_aug_range for each in augmentations):
        job.warn("face_crop_aug_range: has no effect on cached latents; images are centre-cropped")
    images = _distinct(plan.every_image())
    if not job.to_disk:
        return LatentsInMemory(_entries(images, encode, job, total=len(images)))
    disk = LatentsOnDisk(images, layout, encoder_key)
    images = disk.share(images, job)
    fill(disk, images, partial(_entries, encode=encode, job=job, total=len(images)), job)
    return disk


def _entries(
    images: Sequence[Item], encode: EncodeImages, job: CacheJob, *, total: int
) -> Iterator[tuple[Item, Entry]]:
    """Yield the entry of each readable image. Progress counts valid entries of `total` too."""
    done = total - len(images)
    job.progress(done, total)
    for batch in _prepared(images, job):
        yield from _encode([each for each in batch if not isinstance(each, UnreadableImage)], encode)
        done += len(batch)
        job.progress(done, total)


def _distinct(items: Iterable[Item]) -> list[Item]:
    """Return every image at every size once, with the augmentation that its latents are cached for: what any of its
    datasets needs, without random crops and colours."""
    merged: dict[object, Item] = {}
    for item in items:
        key = (item.path, item.fit.bucket.alone)
        first = merged.get(key, item)
        augmentation = Augmentation(
            flip_aug=first.subset.augmentation.flip_aug or item.subset.augmentation.flip_aug,
            alpha_mask=first.masked_by_alpha or item.masked_by_alpha,
            resize_interpolation=first.subset.augmentation.resize_interpolation,
        )
        merged[key] = replace(first, mask=None, subset=replace(first.subset, augmentation=augmentation))
    return list(merged.values())


def _prepared(images: Sequence[Item], job: CacheJob) -> Iterator[list[Prepared | UnreadableImage]]:
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
        decoded = read_ahead(pool, _decode, chain.from_iterable(batches), READERS * job.batch_size)
        for batch in batches:
            prepared = list(islice(decoded, len(batch)))
            for each in prepared:
                if isinstance(each, UnreadableImage):
                    job.warn(f"{each}; another image of its bucket is used instead")
            yield prepared


def _decode(item: Item) -> Prepared | UnreadableImage:
    try:
        return item, *prepare_image(item.path, None, item.fit, item.subset.augmentation, Random(0))
    except UnreadableImage as error:
        return error


def _encode(images: Sequence[Prepared], encode: EncodeImages) -> Iterator[tuple[Item, Entry]]:
    if not images:
        return
    items = [item for item, _, _ in images]
    pixels = stack_pixels([each for _, each, _ in images])
    latents = _finite(encode(pixels), items)
    flipped = None
    if any(item.subset.augmentation.flip_aug for item in items):
        flipped = _finite(encode(pixels.flip(-1)), items)
    for row, (item, _, alpha) in enumerate(images):
        entry = {"latents": latents[row].clone()}  # a view would keep the whole batch alive
        if flipped is not None and item.subset.augmentation.flip_aug:
            entry["latents_flipped"] = flipped[row].clone()
        if alpha is not None:
            entry["alpha_mask"] = torch.from_numpy(alpha)
        yield item, entry


def _finite(latents: Tensor, items: Sequence[Item]) -> Tensor:
    latents = latents.detach().cpu()
    for row, item in enumerate(items):
        if not torch.isfinite(latents[row]).all():
            raise ValueError(f"vae: the latents of {item.path} are not finite; turn on no_half_vae")
    return latents
