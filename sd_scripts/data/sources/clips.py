"""Read the facts of clips, and decode parts of them: resized and cropped frame by frame, as images are."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np

from sd_scripts.data.plan.buckets import BucketFit, Size
from sd_scripts.data.plan.counted_warnings import Warn
from sd_scripts.data.read_ahead import read_ahead
from sd_scripts.data.sources.images import (
    Augmentation,
    Pixels,
    UnreadableImage,
    place_of,
    read_image,
    read_mask,
    resize_and_crop,
    vary_colour,
)
from sd_scripts.data.sources.reading_progress import ReadingProgress
from sd_scripts.data.sources.seen_files import known_probes, remember_probes, stamps_of
from sd_scripts.formats.clips.clip_files import frame_files
from sd_scripts.formats.clips.frames import frames_at
from sd_scripts.formats.clips.probe import Probe, UnreadableClip, probe
from sd_scripts.formats.words import counted, some

THREADS, AHEAD = 8, 16


def read_probes(paths: Iterable[Path], warn: Warn, progress: ReadingProgress) -> dict[Path, Probe]:
    """Return the facts of the clips that can be read, in their order; warn about the others, and about what is special.
    Only clips that are new or changed are opened."""
    paths = list(paths)
    stamps = stamps_of(path for path in paths if path.is_file())  # a folder does not change with its files
    known = known_probes(stamps)
    progress.skip(len(known))
    read: dict[Path, Probe] = {}
    try:
        for path, found in progress.each(_probe_each(path for path in paths if path not in known)):
            if isinstance(found, UnreadableClip):
                warn(f"{path} {found}; it is skipped")
            else:
                read[path] = found
    finally:  # so a run that is stopped in the meantime need not start over
        remember_probes(read, stamps)
    both = known | read
    probes = {path: both[path] for path in paths if path in both}
    _warn_about_kinds(probes, warn)
    return probes


def _probe_each(paths: Iterable[Path]) -> Iterator[tuple[Path, Probe | UnreadableClip]]:
    def attempt(path: Path) -> tuple[Path, Probe | UnreadableClip]:
        try:
            return path, probe(path)
        except UnreadableClip as error:
            return path, error

    with ThreadPoolExecutor(THREADS) as pool:  # reading is I/O bound
        yield from read_ahead(pool, attempt, paths, AHEAD)


def _warn_about_kinds(probes: dict[Path, Probe], warn: Warn) -> None:
    if variable := [path.name for path, found in probes.items() if found.is_variable]:
        have, their = ("has", "its") if len(variable) == 1 else ("have", "their")
        warn(
            f"{counted(len(variable), 'clip')} {have} a variable frame rate, so {their} frames are chosen by time: "
            f"{some(variable)}"
        )
    if hdr := [path.name for path, found in probes.items() if found.is_hdr]:
        verb = "is" if len(hdr) == 1 else "are"
        warn(f"{counted(len(hdr), 'clip')} {verb} HDR and converted to SDR: {some(hdr)}")


def frames_of(path: Path, times: Sequence[int]) -> Iterator[Pixels]:
    """Yield the frames (H, W, 3) of a clip at these times, as Probe.times has them. Raises UnreadableImage."""
    if path.is_dir():
        files = frame_files(path)
        if times[-1] >= len(files):
            raise UnreadableImage(path, f"it has {counted(len(files), 'image')}, fewer than before")
        yield from (read_image(files[time])[0] for time in times)
        return
    try:
        yield from frames_at(path, times)
    except UnreadableClip as error:
        raise UnreadableImage(path, str(error).removeprefix("cannot be read: ")) from error


def prepare_clip(
    path: Path,
    times: Sequence[int],
    size: Size,
    mask_path: Path | None,
    fit: BucketFit,
    augmentation: Augmentation,
    random: Random,
) -> tuple[Pixels, Pixels | None]:
    """Return the frames at these times in their bucket (F, H, W, 3), and the mask of all of them (H, W), not yet
    flipped. `size`: of the clip as shown. Raises UnreadableImage if a frame cannot be decoded.

    All frames are cropped alike and have their colours changed alike.
    """
    bucket = fit.bucket.size
    place = place_of(path, size, fit, augmentation, random)
    width, height = bucket
    pixels = np.empty((len(times), height, width, 3), dtype=np.uint8)
    for number, frame in enumerate(frames_of(path, times)):
        pixels[number] = resize_and_crop(frame, place, bucket, augmentation.resize_interpolation)
    if augmentation.color_aug:
        pixels = vary_colour(pixels.reshape(-1, width, 3), random).reshape(pixels.shape)
    mask = None
    if mask_path is not None:
        mask = resize_and_crop(read_mask(mask_path), place, bucket, augmentation.resize_interpolation)
    elif augmentation.alpha_mask:
        mask = np.full((height, width), 255, dtype=np.uint8)
    return pixels, mask
