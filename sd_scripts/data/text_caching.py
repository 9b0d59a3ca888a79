"""Encode every caption of a plan once, before the first step."""

from collections.abc import Callable
from functools import partial
from random import Random

from torch import Tensor

from sd_scripts.data.cache_files import CacheFile, CacheStatus, DamagedCache, find_missing
from sd_scripts.data.caches import CacheJob, TextStore
from sd_scripts.data.captions import process_caption
from sd_scripts.data.dataset import DataPlan, Item
from sd_scripts.data.text_store import TextInMemory, TextOnDisk, text_cache_key

EncodeText = Callable[[list[str]], dict[str, Tensor]]
"""Captions -> outputs by their names in cache files, batch first, on any device."""


def cache_text(
    plan: DataPlan,
    encode: EncodeText,
    *,
    cache_key: str,
    suffix: str,
    job: CacheJob,
    fits: Callable[[CacheFile], bool] | None = None,
) -> TextStore:
    """Encode each distinct caption once, with prefix, suffix, first line and separators applied.

    `cache_key` identifies the encoders and all that changes their output; `suffix` ends the names of the files. With
    job.skip_check a file that `fits` rejects is rebuilt nevertheless. Captions must not vary between
    steps.
    """
    assert not any(item.subset.captions.random_fields() for item in plan.items), "preflight checks it"
    pairs = [(item, static_caption(item)) for item in plan.every_item()]
    memory = TextInMemory()
    disk = TextOnDisk(pairs, suffix) if job.to_disk else None
    if disk is not None:
        check = partial(_check_text, disk, cache_key=None if job.skip_check else cache_key, fits=fits)
        pairs = list({disk.file(*pair): pair for pair in pairs}.values())[job.rank :: job.world]
        pairs = find_missing(pairs, check, job.warn)
    by_caption: dict[str, list[Item]] = {}
    for item, caption in pairs:
        by_caption.setdefault(caption, []).append(item)
    captions = list(by_caption)
    job.progress(0, len(captions))
    for start in range(0, len(captions), job.batch_size):
        batch = captions[start : start + job.batch_size]
        outputs = {name: tensor.detach().cpu() for name, tensor in encode(batch).items()}
        for row, caption in enumerate(batch):
            # cloned: a view would keep the whole batch alive
            entry = {name: tensor[row].clone() for name, tensor in outputs.items()}
            if disk is None:
                memory.entries[caption] = entry
                continue
            for item in by_caption[caption]:
                disk.write(item, caption, entry, text_cache_key(caption, cache_key))
        job.progress(min(start + job.batch_size, len(captions)), len(captions))
    return disk or memory


def static_caption(item: Item) -> str:
    """Return the caption of an image whose caption rules are not random."""
    return process_caption(item.caption, item.subset.captions, Random(0), epoch=1, step=0, max_train_steps=0)


def _check_text(
    disk: TextOnDisk,
    pair: tuple[Item, str],
    *,
    cache_key: str | None,
    fits: Callable[[CacheFile], bool] | None,
) -> CacheStatus:
    """Return whether the file is usable; without `cache_key` only `fits` is checked."""
    item, caption = pair
    try:
        if cache_key is None:
            return disk.fits(item, caption, fits)
        return disk.is_current(item, caption, text_cache_key(caption, cache_key))
    except DamagedCache as error:
        return error
