"""Fill a cache on disk: encode items without a valid entry, and remember which entries are valid."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from torch import Tensor

from sd_scripts.data.caches.cache_files import CacheFile, DamagedCache, digest, open_cache
from sd_scripts.data.caches.caching import CacheJob
from sd_scripts.data.read_ahead import read_ahead
from sd_scripts.data.sources.images import DECODER
from sd_scripts.data.sources.reading_progress import now_and_then
from sd_scripts.data.sources.seen_files import Stamp, is_settled, known_cache_keys, remember_cache_keys, stamps_of

READERS, AHEAD = 8, 64
Source = TypeVar("Source")
"""What an entry is encoded from, such as an image."""
Entry = Mapping[str, Tensor]
"""The cached tensors of a source, by name."""


class DiskCache(ABC, Generic[Source]):
    """Files next to the images. An entry is valid while the cache key in its file equals its source's."""

    @abstractmethod
    def file(self, source: Source) -> Path:
        """Return the file that is written."""

    @abstractmethod
    def find(self, source: Source) -> Path | None:
        """Return the file to read, ours or an npz of another program; None if there is none."""

    @abstractmethod
    def images(self, source: Source) -> Sequence[Path]:
        """Return the images that are encoded."""

    @abstractmethod
    def settings_key(self, source: Source) -> Sequence[object]:
        """Return, as JSON values, everything the entry depends on besides the content of the images."""

    @abstractmethod
    def is_valid(self, source: Source) -> bool:
        """Return whether the entry is what would be encoded now; raise DamagedCache if its file is broken.

        All that a step will read is read here, while the encoder is still loaded.
        """

    @abstractmethod
    def write(self, source: Source, entry: Entry) -> None:
        """Add or replace an entry, with its cache key."""

    def share(self, sources: Sequence[Source], job: CacheJob) -> list[Source]:
        """Return those that this rank encodes. Sources of one file belong to one rank, since it writes the file."""
        order = {file: place for place, file in enumerate(dict.fromkeys(map(self.file, sources)))}
        return [source for source in sources if order[self.file(source)] % job.world == job.rank]

    def stamp_key(self, source: Source, stamps: Mapping[Path, Stamp]) -> str | None:
        """Return a cache key that has the stamps of files in place of their content: while it is the same, is_valid
        returns the same. None if a file is missing or an image was just changed."""
        file = self.file(source)
        images = self.images(source)
        if file not in stamps or not all(image in stamps and is_settled(stamps[image]) for image in images):
            return None
        stamped = [[str(path.absolute()), stamps[path]] for path in (file, *images)]
        return digest([stamped, DECODER, *self.settings_key(source)])


def fill(
    cache: DiskCache[Source],
    sources: Sequence[Source],
    encode: Callable[[Sequence[Source]], Iterable[tuple[Source, Entry]]],
    job: CacheJob,
    *,
    fits: Callable[[CacheFile], bool] | None = None,
) -> None:
    """Encode the sources that have no valid entry, and write the entries.

    With job.skip_check any file counts that `fits`, where given, accepts.
    """
    has_entry = partial(_has_file, cache, fits) if job.skip_check else cache.is_valid
    stamps: dict[Path, Stamp] = {}
    if not job.skip_check:
        stamps = stamps_of(path for source in sources for path in (cache.file(source), *cache.images(source)))
    missing = _missing(sources, has_entry, [cache.stamp_key(source, stamps) for source in sources], job)
    for source, entry in encode(missing):
        cache.write(source, entry)
    if not job.skip_check:
        stamps |= stamps_of(map(cache.file, missing))  # the images were stamped before they were read
        remember_cache_keys(key for source in missing if (key := cache.stamp_key(source, stamps)))


def _has_file(cache: DiskCache[Source], fits: Callable[[CacheFile], bool] | None, source: Source) -> bool:
    path = cache.find(source)
    if fits is None or path is None:
        return path is not None
    with open_cache(path) as tensors:
        return fits(tensors)


def _missing(
    sources: Sequence[Source],
    has_entry: Callable[[Source], bool],
    stamp_keys: Sequence[str | None],
    job: CacheJob,
) -> list[Source]:
    """Return the sources without an entry, in their order; warn about damaged files. A file whose stamp key is known
    from an earlier run is not read again."""
    known = known_cache_keys(key for key in stamp_keys if key)
    unread = [place for place, key in enumerate(stamp_keys) if key not in known]

    def check(place: int) -> bool | DamagedCache:
        try:
            return has_entry(sources[place])
        except DamagedCache as error:
            return error

    missing: list[Source] = []
    valid_keys: list[str] = []
    done = len(sources) - len(unread)
    report = now_and_then(job.progress)
    with ThreadPoolExecutor(READERS) as pool:  # reading is I/O bound
        for place, result in zip(unread, read_ahead(pool, check, unread, AHEAD), strict=True):
            if isinstance(result, DamagedCache):
                job.warn(f"{result}; it is rebuilt")
            done += result is True
            report(done, len(sources))
            key = stamp_keys[place]
            if result is not True:
                missing.append(sources[place])
            elif key:
                valid_keys.append(key)
    remember_cache_keys(valid_keys)
    return missing
