"""Encode every caption of a plan once, before the first step."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random

from torch import Tensor

from sd_scripts.data.caches.cache_files import (
    CACHE_KEY,
    CacheFile,
    DamagedCache,
    digest,
    open_cache,
    pixels_digest,
    require_finite,
    write_cache,
)
from sd_scripts.data.caches.cache_filling import DiskCache, Entry, fill
from sd_scripts.data.caches.caching import SUFFIX, CacheJob, claim_files
from sd_scripts.data.plan.dataset import DataPlan, Item
from sd_scripts.data.sources.captions import Caption, process_caption
from sd_scripts.data.sources.images import UnreadableImage

EncodeText = Callable[[list[Caption]], dict[str, Tensor]]
"""Captions -> outputs by their names in cache files, batch first, on any device."""
Trim = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""Removes the padding from the outputs of one caption."""
ItemCaption = tuple[Item, Caption]
"""An image with one of its captions."""


def cache_text(
    plan: DataPlan,
    encode: EncodeText,
    *,
    encoder_key: str,
    suffix: str,
    job: CacheJob,
    trim: Trim = dict,
    fits: Callable[[CacheFile], bool] | None = None,
) -> "TextStore":
    """Encode each distinct caption once, with prefix, suffix, first line and separators applied.

    `encoder_key` identifies the encoders and all that changes their output; `suffix` ends the names of the files. With
    job.skip_check a file that `fits` rejects is rebuilt nevertheless. Captions must not vary between steps.
    """
    assert not any(item.subset.captions.random_fields() for item in plan.items), "preflight checks it"
    every = [(item, each) for item in plan.every_item() for each in plan.captions(item, static_caption(item))]
    captions = list({(item.path, caption): (item, caption) for item, caption in every}.values())
    if not job.to_disk:
        return TextInMemory(_entries(captions, encode, trim, job))
    disk = TextOnDisk(captions, suffix, encoder_key)
    fill(disk, disk.share(captions, job), partial(_entries, encode=encode, trim=trim, job=job), job, fits=fits)
    return disk


def _entries(
    captions: Sequence[ItemCaption], encode: EncodeText, trim: Trim, job: CacheJob
) -> Iterator[tuple[ItemCaption, Entry]]:
    """Yield the entry of each caption of each image; equal captions are encoded once."""
    items_of: dict[Caption, list[Item]] = {}
    for item, caption in captions:
        items_of.setdefault(caption, []).append(item)
    distinct = list(items_of)
    job.progress(0, len(distinct))
    for start in range(0, len(distinct), job.batch_size):
        batch = distinct[start : start + job.batch_size]
        outputs = {name: tensor.detach().cpu() for name, tensor in encode(batch).items()}
        for row, caption in enumerate(batch):
            # cloned: a view would keep the whole batch alive
            trimmed = trim({name: tensor[row] for name, tensor in outputs.items()})
            entry = {name: tensor.clone() for name, tensor in trimmed.items()}
            yield from (((item, caption), entry) for item in items_of[caption])
        job.progress(min(start + job.batch_size, len(distinct)), len(distinct))


def static_caption(item: Item) -> str:
    """Return the caption of an image whose caption rules are not random."""
    return process_caption(item.caption, item.subset.captions, Random(0), epoch=1, step=0, max_train_steps=0)


class TextInMemory:
    """Encoded captions kept as tensors, each caption once."""

    def __init__(self, entries: Iterable[tuple[ItemCaption, Entry]]):
        self._entries = {caption: entry for (_, caption), entry in entries}

    def read(self, item: Item, caption: Caption) -> Entry:
        """Return the outputs as TextOnDisk does."""
        return self._entries[caption]


class TextOnDisk(DiskCache[ItemCaption]):
    """Encoded captions, one file per image, plus one for each further caption that the image has in the plan.
    `encoder_key` identifies the encoders and all that changes their output."""

    def __init__(self, captions: Iterable[ItemCaption], suffix: str, encoder_key: str):
        by_path: dict[Path, list[Caption]] = {}
        for item, caption in captions:
            by_path.setdefault(item.path, []).append(caption)
        claimed = claim_files((path, f"_{suffix}{SUFFIX}") for path in by_path)
        first = {path: file for (path, _), file in claimed.items()}
        self._files = {
            (path, caption): first[path]
            if place == 0
            else first[path].with_name(f"{first[path].stem}_{_name_digest(caption)[:8]}{SUFFIX}")
            for path, of_image in by_path.items()
            for place, caption in enumerate(of_image)
        }
        self._encoder_key = encoder_key

    def file(self, source: ItemCaption) -> Path:
        item, caption = source
        return self._files[item.path, caption]

    def find(self, source: ItemCaption) -> Path | None:
        own = self.file(source)
        return next((path for path in (own, own.with_suffix(".npz")) if path.is_file()), None)

    def images(self, source: ItemCaption) -> tuple[Path, ...]:
        _, caption = source
        return caption.images

    def settings_key(self, source: ItemCaption) -> list[object]:
        _, caption = source
        return [caption.text, self._encoder_key, *_flip_key(caption)]

    def read(self, item: Item, caption: Caption) -> Entry:
        """Return the text encoder outputs of one image by name; raise UnreadableImage if there are none."""
        path = self.find((item, caption)) or self.file((item, caption))
        try:
            with open_cache(path) as tensors:
                return dict(tensors)
        except DamagedCache as error:
            raise UnreadableImage(path, error.why) from error

    def is_valid(self, source: ItemCaption) -> bool:
        """Return whether the file equals the encoders' output for the caption; raise DamagedCache if it is broken.

        A file without a cache key, from another program, is not valid: its caption is unknown.
        """
        path = self.find(source)
        if path is None:
            return False
        with open_cache(path) as tensors:
            if tensors.cache_key() != self._cache_key(source):
                return False
            require_finite(tensors.values())
            return True

    def write(self, source: ItemCaption, entry: Entry) -> None:
        keys = {CACHE_KEY: self._cache_key(source)}
        write_cache(self.file(source), entry, keys, option="cache_text_encoder_outputs_to_disk")

    def _cache_key(self, source: ItemCaption) -> str:
        """Return the cache key of a caption, as processed, with the content of its images, and the encoders."""
        _, caption = source
        contents = map(pixels_digest, caption.images)
        return digest([caption.text, self._encoder_key, *contents, *_flip_key(caption)])


TextStore = TextInMemory | TextOnDisk


def _flip_key(caption: Caption) -> list[str]:
    return ["flipped"] if caption.flipped else []


def _name_digest(caption: Caption) -> str:
    """Return a digest that distinguishes the captions of an image."""
    if not caption.images:
        return digest(caption.text)
    return digest([caption.text, *map(str, caption.images), *_flip_key(caption)])
