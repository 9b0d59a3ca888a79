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
from sd_scripts.data.caches import CacheJob, LatentLayout, LatentStore
from sd_scripts.data.dataset import DataPlan, Item
from sd_scripts.data.images import Augmentation, Prepared, UnreadableImage, prepare_image, stack_pixels
from sd_scripts.data.latent_store import LatentEntry, LatentsInMemory, LatentsOnDisk, latent_cache_key

EncodeImages = Callable[[Tensor], Tensor]
"""(B, 3, *S) float32 in -1..1 on the CPU -> latents (B, C, *S) on any device, in the dtype in which they are kept."""
READERS = 4
"""Threads that decode images while the encoder works."""


@dataclass(frozen=True, kw_only=True)
class ToEncode:
    """One image at one size to encode, and what to store with its latents."""

    item: Item
    flip: bool
    alpha: bool


def cache_latents(
    plan: DataPlan, encode: EncodeImages, *, cache_key: str, layout: LatentLayout, job: CacheJob
) -> LatentStore:
    """Encode training and validation images.

    `cache_key` identifies the VAE and all that changes its output. Unreadable images cause a warning; the loader
    replaces them.
    """
    augmentations = {item.subset.augmentation for item in plan.items}
    assert not any(each.color_aug or each.random_crop for each in augmentations), "preflight checks it"
    if any(each.face_crop_aug_range for each in augmentations):
        job.warn("face_crop_aug_range: has no effect on cached latents; images are centre-cropped")
    images = _to_encode(plan)
    memory = LatentsInMemory()
    disk = LatentsOnDisk((each.item for each in images), layout) if job.to_disk else None
    if disk is not None:
        # split by file: all sizes of an image share one
        order = {file: place for place, file in enumerate(dict.fromkeys(disk.file(each.item) for each in images))}
        images = [each for each in images if order[disk.file(each.item)] % job.world == job.rank]
    total = len(images)
    if disk is not None:
        check = partial(_check_latents, disk, cache_key=cache_key, skip_check=job.skip_check)
        images = find_missing(images, check, job.warn)
    done = total - len(images)
    job.progress(done, total)
    for batch, prepared in _prepared_ahead(_batches_of_one_size(images, job.batch_size)):
        for each, entry in _encode(_readable(batch, prepared, job.warn), encode):
            if disk is None:
                memory.entries[each.item.path, each.item.fit.bucket] = entry
            elif made_from := latent_cache_key(each.item, cache_key, alpha=each.alpha):
                disk.write(each.item, entry, made_from)
        done += len(batch)
        job.progress(done, total)
    return disk or memory


def _to_encode(plan: DataPlan) -> list[ToEncode]:
    """Return every image at every size once, with everything that any of its datasets needs."""
    merged: dict[object, ToEncode] = {}
    for item in plan.every_item():
        key = (item.path, item.fit.bucket)
        known = merged.get(key)
        merged[key] = ToEncode(
            item=known.item if known else item,
            flip=item.subset.augmentation.flip_aug or (known is not None and known.flip),
            alpha=(item.subset.augmentation.alpha_mask and item.mask is None) or (known is not None and known.alpha),
        )
    return list(merged.values())


def _batches_of_one_size(images: Sequence[ToEncode], batch_size: int) -> Iterator[list[ToEncode]]:
    by_size: dict[object, list[ToEncode]] = {}
    for each in images:
        by_size.setdefault(each.item.fit.bucket, []).append(each)
    for group in by_size.values():
        for start in range(0, len(group), batch_size):
            yield group[start : start + batch_size]


def _prepared_ahead(
    batches: Iterator[list[ToEncode]],
) -> Iterator[tuple[list[ToEncode], list[Prepared | UnreadableImage]]]:
    """Yield batches with their decoded images while threads decode the next ones."""
    with ThreadPoolExecutor(READERS) as pool:

        def submit(batch: list[ToEncode]) -> tuple[list[ToEncode], list[Future[Prepared | UnreadableImage]]]:
            return batch, [pool.submit(_prepare, each) for each in batch]

        waiting = deque(submit(batch) for batch in islice(batches, READERS))
        while waiting:
            batch, images = waiting.popleft()
            waiting.extend(submit(following) for following in islice(batches, 1))
            yield batch, [image.result() for image in images]


def _prepare(each: ToEncode) -> Prepared | UnreadableImage:
    """Return the image in its bucket, without random augmentation."""
    augmentation = Augmentation(
        resize_interpolation=each.item.subset.augmentation.resize_interpolation, alpha_mask=each.alpha
    )
    try:
        return prepare_image(each.item.path, None, each.item.fit, augmentation, Random(0))
    except UnreadableImage as error:
        return error


def _readable(
    batch: Sequence[ToEncode], images: Sequence[Prepared | UnreadableImage], warn: Warn
) -> list[tuple[ToEncode, Prepared]]:
    for image in images:
        if isinstance(image, UnreadableImage):
            warn(f"{image}; another image of its bucket takes its place")
    return [(each, image) for each, image in zip(batch, images, strict=True) if isinstance(image, Prepared)]


def _encode(batch: Sequence[tuple[ToEncode, Prepared]], encode: EncodeImages) -> Iterator[tuple[ToEncode, LatentEntry]]:
    if not batch:
        return
    pixels = stack_pixels([image.pixels for _, image in batch])
    latents = _finite(encode(pixels), batch)
    flipped = _finite(encode(pixels.flip(-1)), batch) if any(each.flip for each, _ in batch) else None
    for row, (each, image) in enumerate(batch):
        entry = LatentEntry(
            latents=latents[row].clone(),  # a view would keep the whole batch alive
            flipped=flipped[row].clone() if flipped is not None and each.flip else None,
            alpha=image.mask if each.alpha else None,
        )
        yield each, entry


def _finite(latents: Tensor, batch: Sequence[tuple[ToEncode, Prepared]]) -> Tensor:
    latents = latents.detach().cpu()
    for row, (each, _) in enumerate(batch):
        if not torch.isfinite(latents[row]).all():
            raise ValueError(f"vae: the latents of {each.item.path} are not finite; turn on no_half_vae")
    return latents


def _check_latents(disk: LatentsOnDisk, each: ToEncode, *, cache_key: str, skip_check: bool) -> CacheStatus:
    if skip_check:
        return disk.find(each.item) is not None
    try:
        return disk.is_current(each.item, cache_key, flip=each.flip, alpha=each.alpha)
    except DamagedCache as error:
        return error
