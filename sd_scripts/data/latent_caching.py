"""Encode every image of a plan once, before the first step."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from random import Random

import torch
from torch import Tensor

from sd_scripts.data.blueprint import Warn
from sd_scripts.data.cache_files import CacheStatus, DamagedCache, find_missing
from sd_scripts.data.caches import LatentStore
from sd_scripts.data.dataset import DataPlan, Item
from sd_scripts.data.images import Augmentation, Prepared, UnreadableImage, prepare_image, stack_pixels
from sd_scripts.data.latent_store import LatentEntry, LatentsInMemory, LatentsOnDisk, latent_cache_key

Progress = Callable[[int, int], None]
"""Called with (done, total)."""
EncodeImages = Callable[[Tensor], Tensor]
"""(B, 3, H, W) float32 in -1..1 on the CPU -> (B, C, H/8, W/8) on any device."""
READERS = 4
"""Threads that decode images while the encoder works."""


@dataclass(frozen=True, kw_only=True)
class LatentJob:
    """One image at one size to encode, and what to store with its latents."""

    item: Item
    flip: bool
    alpha: bool


def cache_latents(
    plan: DataPlan,
    encode: EncodeImages,
    *,
    cache_key: str,
    warn: Warn,
    to_disk: bool,
    suffix: str = "sdxl",
    channels: int = 4,
    batch_size: int = 1,
    skip_check: bool = False,
    progress: Progress = lambda done, total: None,
    rank: int = 0,
    world: int = 1,
) -> LatentStore:
    """Encode training and validation images to latents of `channels` channels.

    `cache_key` identifies the VAE and all that changes its output. On disk, current files are kept and each of `world`
    ranks encodes its share: wait for all ranks before loading. In memory, every rank encodes everything. With
    `skip_check` any existing file is trusted. Unreadable images cause a warning; the loader replaces them.
    """
    require_static_images(plan, warn)
    jobs = _latent_jobs(plan)
    memory = LatentsInMemory()
    disk = LatentsOnDisk((each.item for each in jobs), suffix, channels) if to_disk else None
    if disk is not None:
        # split by file: all sizes of an image share one
        order = {file: place for place, file in enumerate(dict.fromkeys(disk.file(each.item) for each in jobs))}
        jobs = [each for each in jobs if order[disk.file(each.item)] % world == rank]
    total = len(jobs)
    if disk is not None:
        check = partial(_check_latents, disk, cache_key=cache_key, skip_check=skip_check)
        jobs = find_missing(jobs, check, warn)
    done = total - len(jobs)
    progress(done, total)
    for batch, images in _prepared_ahead(_batches_of_one_size(jobs, batch_size)):
        for each, entry in _encode(_readable(batch, images, warn), encode):
            if disk is None:
                memory.entries[each.item.path, each.item.fit.bucket] = entry
            elif made_from := latent_cache_key(each.item, cache_key, alpha=each.alpha):
                disk.write(each.item, entry, made_from)
        done += len(batch)
        progress(done, total)
    return disk or memory


def _latent_jobs(plan: DataPlan) -> list[LatentJob]:
    """Return one job per image and size, with everything that any of its datasets needs."""
    merged: dict[object, LatentJob] = {}
    for item in plan.every_item():
        key = (item.path, item.fit.bucket)
        known = merged.get(key)
        merged[key] = LatentJob(
            item=known.item if known else item,
            flip=item.subset.augmentation.flip_aug or (known is not None and known.flip),
            alpha=(item.subset.augmentation.alpha_mask and item.mask is None) or (known is not None and known.alpha),
        )
    return list(merged.values())


def _batches_of_one_size(jobs: Sequence[LatentJob], batch_size: int) -> Iterator[list[LatentJob]]:
    by_size: dict[object, list[LatentJob]] = {}
    for each in jobs:
        by_size.setdefault(each.item.fit.bucket, []).append(each)
    for group in by_size.values():
        for start in range(0, len(group), batch_size):
            yield group[start : start + batch_size]


def _prepared_ahead(
    batches: Iterator[list[LatentJob]],
) -> Iterator[tuple[list[LatentJob], list[Prepared | UnreadableImage]]]:
    """Yield batches with their decoded images while threads decode the next ones."""
    with ThreadPoolExecutor(READERS) as pool:

        def submit(batch: list[LatentJob]) -> tuple[list[LatentJob], list[Future[Prepared | UnreadableImage]]]:
            return batch, [pool.submit(_prepare, each) for each in batch]

        waiting = deque(submit(batch) for batch in islice(batches, READERS))
        while waiting:
            batch, images = waiting.popleft()
            waiting.extend(submit(following) for following in islice(batches, 1))
            yield batch, [image.result() for image in images]


def _prepare(each: LatentJob) -> Prepared | UnreadableImage:
    """Return the image in its bucket, without random augmentation."""
    augmentation = Augmentation(
        resize_interpolation=each.item.subset.augmentation.resize_interpolation, alpha_mask=each.alpha
    )
    try:
        return prepare_image(each.item.path, None, each.item.fit, augmentation, Random(0))
    except UnreadableImage as error:
        return error


def _readable(
    batch: Sequence[LatentJob], images: Sequence[Prepared | UnreadableImage], warn: Warn
) -> list[tuple[LatentJob, Prepared]]:
    for image in images:
        if isinstance(image, UnreadableImage):
            warn(f"{image}; another image of its bucket takes its place")
    return [(each, image) for each, image in zip(batch, images, strict=True) if isinstance(image, Prepared)]


def _encode(
    batch: Sequence[tuple[LatentJob, Prepared]], encode: EncodeImages
) -> Iterator[tuple[LatentJob, LatentEntry]]:
    if not batch:
        return
    pixels = stack_pixels([image.pixels for _, image in batch])
    latents = _finite(encode(pixels), batch)
    flipped = _finite(encode(pixels.flip(3)), batch) if any(each.flip for each, _ in batch) else None
    for row, (each, image) in enumerate(batch):
        entry = LatentEntry(
            latents=latents[row].clone(),  # a view would keep the whole batch alive
            flipped=flipped[row].clone() if flipped is not None and each.flip else None,
            alpha=image.mask if each.alpha else None,
        )
        yield each, entry


def _finite(latents: Tensor, batch: Sequence[tuple[LatentJob, Prepared]]) -> Tensor:
    latents = latents.detach().float().cpu()
    for row, (each, _) in enumerate(batch):
        if not torch.isfinite(latents[row]).all():
            raise ValueError(f"vae: the latents of {each.item.path} are not finite; turn on no_half_vae")
    return latents


def _check_latents(disk: LatentsOnDisk, each: LatentJob, *, cache_key: str, skip_check: bool) -> CacheStatus:
    if skip_check:
        return disk.find(each.item) is not None
    try:
        return disk.is_current(each.item, cache_key, flip=each.flip, alpha=each.alpha)
    except DamagedCache as error:
        return error


def require_static_images(plan: DataPlan, warn: Warn) -> None:
    """Raise ValueError if images of the plan vary between steps."""
    for augmentation in {item.subset.augmentation for item in plan.items}:
        for name in ("color_aug", "random_crop"):
            if getattr(augmentation, name):
                raise ValueError(f"cache_latents: {name} changes images in every step; turn one of the two off")
        if augmentation.face_crop_aug_range:
            warn("face_crop_aug_range: has no effect on cached latents; images are centre-cropped")
