"""Define what latent and text caches share: how they are filled, and their file names."""

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.plan.counted_warnings import Warn
from sd_scripts.data.sources.reading_progress import Progress
from sd_scripts.formats.documents import LONGEST_PART

SUFFIX = ".safetensors"
"""Of the cache files that we write."""


LONGEST_NAME = LONGEST_PART - 27
"""Bytes of the name of a cache file. Its hidden name while it is written takes 18 more, and 9 a further caption of its
image."""
DIGITS = 12
"""Digits of the digest in a shortened name."""


@dataclass(frozen=True, kw_only=True)
class CacheJob:
    """How a cache is filled.

    On disk, current files are kept and each of `world` ranks encodes its share: wait for all ranks before loading. In
    memory, every rank encodes everything. With `skip_check` any existing file is trusted.
    """

    warn: Warn
    to_disk: bool
    batch_size: int = 1
    skip_check: bool = False
    progress: Progress = lambda done, total: None
    rank: int = 0
    world: int = 1


@dataclass(frozen=True, kw_only=True)
class LatentLayout:
    """The shape of a family's latents, and the names of their files."""

    suffix: str
    """Ends the names of cache files: `name_1024x1024_<suffix>.safetensors`."""
    shape: Callable[[Extent], tuple[int, ...]]
    """Shape (C, *S) of the latents of one sample."""
    named_after_image: bool = False
    """Whether older trainers named this family's files after the image alone: `name.npz`."""


def claim_files(names: Iterable[tuple[Path, str]]) -> dict[tuple[Path, str], Path]:
    """Assign each image with an ending a file named after its stem; of `a.png` and `a.jpg`, the second gets its full
    name. A name that no file can have is shortened."""
    files: dict[tuple[Path, str], Path] = {}
    taken: set[Path] = set()
    for image, ending in dict.fromkeys(names):
        file = image.with_name(_shortened(image.stem, ending))
        files[image, ending] = image.with_name(_shortened(image.name, ending)) if file in taken else file
        taken.add(file)
    return files


def _shortened(name: str, ending: str) -> str:
    """Return a name with its ending; of one that is too long the start, with a digest of the whole."""
    encoded = os.fsencode(name)
    room = LONGEST_NAME - len(ending)
    if len(encoded) <= room:
        return name + ending
    digest = hashlib.sha256(encoded).hexdigest()[:DIGITS]
    start = encoded[: room - DIGITS - 1].decode(errors="ignore")  # may end within a letter
    return f"{start}-{digest}{ending}"
