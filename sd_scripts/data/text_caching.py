"""Encode every caption of a plan once, before the first step."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from sd_scripts.data.cache_files import (
    CACHE_KEY,
    CacheFile,
    DamagedCache,
    digest,
    find_missing,
    open_cache,
    pixels_digest,
    write_cache,
)
from sd_scripts.data.caches import SUFFIX, CacheJob, claim_files
from sd_scripts.data.captions import images_flipped, images_of, process_caption
from sd_scripts.data.dataset import DataPlan, Item
from sd_scripts.data.images import DECODER, UnreadableImage
from sd_scripts.data.seen_files import Stamp, is_settled, remember_current, stamps_of

EncodeText = Callable[[list[str]], dict[str, Tensor]]
"""Captions -> outputs by their names in cache files, batch first, on any device."""


def cache_text(
    plan: DataPlan,
    encode: EncodeText,
    *,
    cache_key: str,
    suffix: str,
    job: CacheJob,
    trim: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = dict,
    fits: Callable[[CacheFile], bool] | None = None,
) -> "TextStore":
    """Encode each distinct caption once, with prefix, suffix, first line and separators applied.

    `cache_key` identifies the encoders and all that changes their output; `suffix` ends the names of the files; `trim`
    removes the padding from the outputs of one caption. With job.skip_check a file that `fits` rejects is rebuilt
    nevertheless. Captions must not vary between steps.
    """
    assert not any(item.subset.captions.random_fields() for item in plan.items), "preflight checks it"
    pairs = [(item, each) for item in plan.every_item() for each in plan.captions(item, static_caption(item))]
    memory = TextInMemory()
    disk = TextOnDisk(pairs, suffix) if job.to_disk else None
    if disk is not None:

        def is_current(pair: tuple[Item, str]) -> bool:
            return disk.fits(*pair, fits) if job.skip_check else disk.is_current(*pair, cache_key)

        pairs = list({disk.file(*pair): pair for pair in pairs}.values())[job.rank :: job.world]
        stamps = stamps_of(path for pair in pairs for path in (disk.file(*pair), *images_of(pair[1])))
        pairs = find_missing(
            pairs,
            is_current,
            job.warn,
            progress=job.progress,
            evidence=lambda pair: None if job.skip_check else disk.evidence(*pair, cache_key, stamps),
        )
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
            trimmed = trim({name: tensor[row] for name, tensor in outputs.items()})
            entry = {name: tensor.clone() for name, tensor in trimmed.items()}
            if disk is None:
                memory.entries[caption] = entry
                continue
            for item in by_caption[caption]:
                disk.write(item, caption, entry, cache_key)
        job.progress(min(start + job.batch_size, len(captions)), len(captions))
    if disk is not None and not job.skip_check:
        stamps |= stamps_of(disk.file(*pair) for pair in pairs)  # those of images are from before they were read
        remember_current(each for pair in pairs if (each := disk.evidence(*pair, cache_key, stamps)))
    return disk or memory


def static_caption(item: Item) -> str:
    """Return the caption of an image whose caption rules are not random."""
    return process_caption(item.caption, item.subset.captions, Random(0), epoch=1, step=0, max_train_steps=0)


class TextInMemory:
    """Encoded captions kept as tensors, each caption once."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Tensor]] = {}

    def read(self, item: Item, caption: str) -> dict[str, Tensor]:
        """Return the outputs as TextOnDisk does."""
        return self.entries[caption]


class TextOnDisk:
    """Encoded captions, one file per image, plus one for each further caption that the image has in the plan."""

    def __init__(self, captions: Iterable[tuple[Item, str]], suffix: str):
        by_path: dict[Path, list[str]] = {}
        for item, caption in captions:
            if caption not in by_path.setdefault(item.path, []):
                by_path[item.path].append(caption)
        first = claim_files(dict.fromkeys(by_path, f"_{suffix}{SUFFIX}"))
        self._files = {
            (path, caption): first[path]
            if place == 0
            else first[path].with_name(f"{first[path].stem}_{_name_digest(caption)[:8]}{SUFFIX}")
            for path, texts in by_path.items()
            for place, caption in enumerate(texts)
        }

    def file(self, item: Item, caption: str) -> Path:
        """Return the file that is written."""
        return self._files[item.path, caption]

    def find(self, item: Item, caption: str) -> Path | None:
        """Return the file to read: ours, or an npz of an earlier version or another trainer."""
        own = self.file(item, caption)
        return next((path for path in (own, own.with_suffix(".npz")) if path.is_file()), None)

    def read(self, item: Item, caption: str) -> dict[str, Tensor]:
        """Return the text encoder outputs of one image by name; raise UnreadableImage if there are none."""
        path = self.find(item, caption) or self.file(item, caption)
        try:
            with open_cache(path) as tensors:
                return dict(tensors)
        except DamagedCache as error:
            raise UnreadableImage(path, error.why) from error

    def is_current(self, item: Item, caption: str, encoder: str) -> bool:
        """Return whether `encoder` made the file from this caption; raise DamagedCache if it is broken.

        A file without a cache key is not current.
        """
        path = self.find(item, caption)
        if path is None:
            return False
        with open_cache(path) as tensors:
            if tensors.cache_key() != _cache_key(caption, encoder):
                return False
            for tensor in tensors.values():  # read everything now: later the encoders are unloaded
                if not torch.isfinite(tensor).all():
                    raise ValueError("it contains non-finite values")
            return True

    def evidence(self, item: Item, caption: str, encoder: str, stamps: Mapping[Path, Stamp]) -> str | None:
        """Return what tells, without reading the file, that is_current would find the same as before; None if there is
        none."""
        path, images = self.file(item, caption), images_of(caption)
        if path not in stamps or not all(image in stamps and is_settled(stamps[image]) for image in images):
            return None
        seen = [[str(image.absolute()), stamps[image], DECODER] for image in images]
        return digest([str(path.absolute()), stamps[path], caption, encoder, *seen, *_flip_key(caption)])

    def fits(self, item: Item, caption: str, fits: Callable[[CacheFile], bool] | None) -> bool:
        """Return whether the file exists and, if `fits` is given, passes it; any program may have written it."""
        path = self.find(item, caption)
        if fits is None or path is None:
            return path is not None
        with open_cache(path) as tensors:
            return fits(tensors)

    def write(self, item: Item, caption: str, outputs: Mapping[str, Tensor], encoder: str) -> None:
        keys = {CACHE_KEY: _cache_key(caption, encoder)}
        write_cache(self.file(item, caption), outputs, keys, option="cache_text_encoder_outputs_to_disk")


TextStore = TextInMemory | TextOnDisk


def _cache_key(caption: str, encoder: str) -> str:
    """Return the cache key of a caption, as processed, with the content of its images, and the encoders."""
    return digest([caption, encoder, *map(pixels_digest, images_of(caption)), *_flip_key(caption)])


def _flip_key(caption: str) -> list[str]:
    return ["flipped"] if images_flipped(caption) else []


def _name_digest(caption: str) -> str:
    """Return a digest that tells the captions of an image apart."""
    images = images_of(caption)
    return digest([caption, *map(str, images), *_flip_key(caption)] if images else caption)
