"""Read a subset's files: images, clips, caption files, masks, metadata files."""

import glob
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from sd_scripts.data.caches.caching import SUFFIX
from sd_scripts.data.plan.blueprint import Subset
from sd_scripts.data.plan.buckets import Size
from sd_scripts.data.plan.counted_warnings import Warn
from sd_scripts.data.sources.clips import read_probes
from sd_scripts.data.sources.images import UnreadableImage, read_each, read_header
from sd_scripts.data.sources.masks import required_masks, warn_about_masks
from sd_scripts.data.sources.reading_progress import ReadingProgress
from sd_scripts.data.sources.seen_files import Header, known_headers, remember_headers, stamps_of
from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.clips.clip_files import find_clips, find_frame_folders, is_clip
from sd_scripts.formats.clips.probe import Probe
from sd_scripts.formats.images.caption_files import CaptionFiles, find_captions, read_captions
from sd_scripts.formats.images.control_images import find_controls
from sd_scripts.formats.images.folder_names import ByName, existing_folder
from sd_scripts.formats.images.image_folders import broken_images, files_in, find_images, is_readable, unread_images
from sd_scripts.formats.images.metadata_file import control_paths, lines_of, read_metadata
from sd_scripts.formats.words import counted, some
from sd_scripts.runs.folder import read_json

Result = TypeVar("Result")
CACHED_SIZES = "metadata_cache.json"


@dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """A readable image or clip with its size and caption."""

    path: Path
    size: Size
    caption: str
    """The caption as written, before the caption pipeline; it has several lines only with enable_wildcard."""
    mask: Path | None = None
    train_resolution: Size | None = None
    """The bucket that a metadata file names."""
    controls: tuple["ImageRecord", ...] = ()
    """Its control images and clips, in order, without captions."""
    clip: Probe | None = None
    """None: it is an image."""


def read_subset(subset: Subset, warn: Warn, progress: ReadingProgress, *, clips: bool = False) -> list[ImageRecord]:
    """Return the readable images and, with `clips`, the clips of a subset, sorted by name within a folder; warn about
    each one that is skipped."""
    read = _read_metadata if subset.metadata_file else _read_folder
    images = read(subset, warn, progress, clips)
    if subset.control_directory and not subset.metadata_file:
        images = _with_controls(images, subset, subset.control_directory, warn, progress, clips)
    if not subset.conditioning_data_dir:
        return images
    masks = required_masks(subset, subset.conditioning_data_dir, [image.path for image in images])
    warn_about_masks({masks[image.path]: image.size for image in images}, warn)
    return [replace(image, mask=masks[image.path]) for image in images]


def _read_folder(subset: Subset, warn: Warn, progress: ReadingProgress, clips: bool) -> list[ImageRecord]:
    folder = Path(subset.image_dir or "")
    if not folder.is_dir():
        raise ValueError(f"image_dir: folder not found: {str(folder)!r}")
    files = files_in(folder)
    images = _supported_images(find_images(folder, files=files), warn) if subset.media != "clips" else []
    found_clips = _clips_in(subset, folder, files, warn, clips)
    _warn_about_unread(folder, files, warn)
    if broken := broken_images(folder, files):
        where = f"{counted(len(broken), 'image')} in {folder.absolute().name!r}"
        how = "is a link" if len(broken) == 1 else "are links"
        warn(f"{where} {how} to a missing file, or no file at all, and skipped: {some(broken)}")
    sources = _by_name(images, found_clips)
    progress.expect(2 * len(sources))  # caption and size
    caption_files = find_captions(folder, sources, subset.caption_extension, files)
    captions = _read_captions(caption_files, sources, subset, warn, progress)
    if subset.cache_info:
        sizes = _cached_sizes({path: captions[path] for path in images}, folder / CACHED_SIZES, warn, progress)
    else:
        sizes = read_sizes(images, warn, progress)
    return _records(captions, sizes, read_probes(found_clips, warn, progress))


def _records(
    captions: Mapping[Path, str], sizes: Mapping[Path, Size], probes: Mapping[Path, Probe]
) -> list[ImageRecord]:
    """Return the images and clips with a size, in the order of their captions."""
    sizes = {**sizes, **{path: clip.size for path, clip in probes.items()}}
    return [
        ImageRecord(path=path, size=sizes[path], caption=caption, clip=probes.get(path))
        for path, caption in captions.items()
        if path in sizes
    ]


def _by_name(images: Sequence[Path], clips: Sequence[Path]) -> list[Path]:
    """Return images and clips of a folder in the order of find_images."""
    return sorted((*images, *clips), key=lambda path: os.path.normcase(path.name)) if clips else list(images)


def _clips_in(subset: Subset, folder: Path, files: Mapping[str, Path], warn: Warn, used: bool) -> list[Path]:
    """Return the clips of a folder; folders of frames too if the subset has clips alone. Warn if they are not used."""
    if subset.media == "images":
        return []
    found = find_clips(folder, files=files)
    if not used:
        _warn_about_clips([path.name for path in found], folder.absolute().name, warn)
        return []
    return _by_name(found, find_frame_folders(folder)) if subset.media == "clips" else found


def _warn_about_clips(names: Sequence[str], where: str, warn: Warn) -> None:
    if names:
        verb = "is" if len(names) == 1 else "are"
        what = f"{counted(len(names), 'video')} in {where!r} {verb} skipped"
        warn(f"{what}, since this model is trained on images: {some(names)}")


def _supported_images(images: list[Path], warn: Warn) -> list[Path]:
    """Return the images whose format this installation of Pillow can read; warn about the others."""
    unknown = [path for path in images if not is_readable(path)]
    if unknown:
        kind = unknown[0].suffix.lower()
        warn(
            f"{len(unknown)} images are skipped: Pillow has no plugin for {kind} here. Install one, or "
            f"convert them: {some([str(path) for path in unknown])}"
        )
    return [path for path in images if path not in unknown] if unknown else images


def _warn_about_unread(folder: Path, names: Iterable[str], warn: Warn) -> None:
    if unread := unread_images(names):
        verb, their, them = ("is", "its", "it") if len(unread) == 1 else ("are", "their", "them")
        warn(
            f"{counted(len(unread), 'image')} in {folder.absolute().name!r} {verb} skipped, since {their} kind is not "
            f"read; convert {them} to PNG, JPEG or WebP: {some(unread)}"
        )


def _read_captions(
    files: CaptionFiles, images: list[Path], subset: Subset, warn: Warn, progress: ReadingProgress
) -> dict[Path, str]:
    """Return the caption of each image; warn with a count about missing, empty and multi-line caption files.

    Only the first non-empty line is used, unless enable_wildcard is set.
    """
    instead = " ".join(filter(None, (subset.captions.caption_prefix, subset.class_tokens)))
    if problem := files.problem(instead, is_reg=subset.is_reg):
        warn(problem)
    if orphans := files.orphan_problem():
        warn(orphans)
    shared = dict.fromkeys(files.found.values())
    progress.skip(len(images) - len(shared))
    texts = read_captions(progress.each(shared))
    of = f"of {len(files.found)} caption files in {files.folder.absolute().name!r}"
    if empty := [file.name for file, lines in texts.items() if not lines]:
        warn(f"{len(empty)} {of} are empty, so these images have no caption: {some(empty)}")
    _warn_about_lines([file.name for file, lines in texts.items() if len(lines) > 1], of, subset, warn)
    absent = subset.class_tokens or ""
    return {image: _used_lines(texts[file], subset) if (file := files.found.get(image)) else absent for image in images}


def _used_lines(lines: Sequence[str], subset: Subset) -> str:
    """Return the first line of a caption; with enable_wildcard all."""
    return "\n".join(lines if subset.captions.enable_wildcard else lines[:1])


def _warn_about_lines(longer: Sequence[str], of: str, subset: Subset, warn: Warn) -> None:
    """Warn about captions with more than one line if only the first is used."""
    if longer and not subset.captions.enable_wildcard:
        warn(
            f"{len(longer)} {of} have more than one line. Only the first is used; set enable_wildcard "
            f"to pick a random line each time: {some(longer)}"
        )


def _cached_sizes(captions: dict[Path, str], cache: Path, warn: Warn, progress: ReadingProgress) -> dict[Path, Size]:
    """Take image sizes from metadata_cache.json; open only the images that changed since it was written."""
    stamps = {path: _stamp(path) for path in captions}
    found = _headers_in(read_json(cache), stamps)
    missing = [path for path in captions if path not in found]
    progress.skip(len(found))
    if missing:
        found |= _read_headers(missing, warn, progress)
        entries = {
            str(path): {"caption": captions[path], "resolution": size, "animated": animated, "stamp": stamps[path]}
            for path, (size, animated) in found.items()
        }
        try:
            write_whole(cache, json.dumps(entries, ensure_ascii=False, indent=1))
        except OSError as error:
            warn(f"cache_info: {cache} cannot be written ({error.strerror or error}), so image sizes are not cached")
    return _sizes(found, warn)


def _stamp(path: Path) -> list[object]:
    """Return a tag that changes when a file does. PNGs carry a tag: older entries have their size before EXIF
    rotation."""
    stat = path.stat()
    stamp: list[object] = [stat.st_size, stat.st_mtime_ns]
    return [*stamp, "upright"] if path.suffix.lower() == ".png" else stamp


def _headers_in(cache: Any, stamps: dict[Path, list[object]]) -> dict[Path, Header]:
    """Return the entries of a metadata_cache.json for these images; entries in a different format are ignored."""
    entries = cache if isinstance(cache, dict) else {}
    headers = {}
    for path, stamp in stamps.items():
        entry = entries.get(str(path))
        if not isinstance(entry, dict) or entry.get("stamp") != stamp or type(entry.get("animated")) is not bool:
            continue
        size = entry.get("resolution")
        if isinstance(size, list) and len(size) == 2 and all(type(side) is int and side > 0 for side in size):
            headers[path] = ((size[0], size[1]), entry["animated"])
    return headers


def read_sizes(paths: Iterable[Path], warn: Warn, progress: ReadingProgress) -> dict[Path, Size]:
    """Return the sizes of the images that can be opened, in their order; warn about the others, and about animated
    ones. Only images that are new or changed are opened."""
    return _sizes(_read_headers(paths, warn, progress), warn)


def _sizes(headers: Mapping[Path, Header], warn: Warn) -> dict[Path, Size]:
    """Return the sizes alone; warn about animated images."""
    if animated := [path.name for path, (_, is_animated) in headers.items() if is_animated]:
        what, its = ("image is", "its") if len(animated) == 1 else ("images are", "their")
        warn(f"{len(animated):,} {what} animated, and only {its} first frame is used: {some(animated)}")
    return {path: size for path, (size, _) in headers.items()}


def _read_headers(paths: Iterable[Path], warn: Warn, progress: ReadingProgress) -> dict[Path, Header]:
    """Return the headers of images as read_sizes returns sizes; warn about those that cannot be opened."""
    paths = list(paths)
    stamps = stamps_of(paths)
    known = known_headers(stamps)
    read: dict[Path, Header] = {}
    progress.skip(len(known))
    try:
        unknown = [path for path in paths if path not in known]
        for path, header in progress.each(read_each(read_header, unknown)):
            if isinstance(header, UnreadableImage):
                warn(f"{header}; it is skipped")
            else:
                read[path] = header
    finally:  # so a run that is stopped in the meantime need not start over
        remember_headers(read, stamps)
    return {path: found for path in paths if (found := known.get(path) or read.get(path))}


def _with_controls(
    images: list[ImageRecord], subset: Subset, folder: str, warn: Warn, progress: ReadingProgress, clips: bool
) -> list[ImageRecord]:
    """Return the images with their control images from control_directory, and clips with control clips. Raises
    ValueError if any is missing."""
    try:
        found = find_controls(folder, subset.name, [image.path for image in images], clips=clips)
    except ValueError as error:
        raise ValueError(f"control_directory: {error}") from error
    records = control_records({path for paths in found.values() for path in paths}, "control_directory", warn, progress)
    return [replace(image, controls=tuple(records[path] for path in found[image.path])) for image in images]


def control_records(
    paths: Iterable[Path], option: str, warn: Warn, progress: ReadingProgress
) -> dict[Path, ImageRecord]:
    """Return control images and clips by path. Raises ValueError if one cannot be read: its sample would lack it."""
    paths = sorted(paths)
    clips = [path for path in paths if is_clip(path) or path.is_dir()]
    images = [path for path in paths if path not in clips] if clips else paths
    broken: list[str] = []
    progress.expect(len(paths))

    def report(text: str) -> None:
        broken.append(text.removesuffix("; it is skipped")) if text.endswith("; it is skipped") else warn(text)

    headers = _read_headers(images, report, progress)
    probes = read_probes(clips, report, progress)
    if broken:
        raise ValueError(f"{option}: the control image {broken[0]}; replace it, or remove its training image")
    sizes = _sizes(headers, lambda text: warn(f"{option}: {text}"))
    return {record.path: record for record in _records(dict.fromkeys(paths, ""), sizes, probes)}


def _read_metadata(subset: Subset, warn: Warn, progress: ReadingProgress, clips: bool) -> list[ImageRecord]:
    """Return the images and clips of a metadata file that exist, or whose cached latents do."""
    file = Path(subset.metadata_file or "")
    entries: dict[Path, dict[str, Any]] = {}
    sizes: dict[Path, Size] = {}
    missing = []
    lookup = _ImageLookup(Path(subset.image_dir) if subset.image_dir else None)
    for key, entry in read_metadata(file, "metadata_file").items():
        path = lookup.image(key)
        if path is None:
            path, cache = lookup.cache(key)
            if cache is None:
                missing.append(key)
                continue
            told = _size(entry.get("image_size"))
            bucket = _size(entry.get("train_resolution"))
            if size := told or _size_in_cache(path, cache) or bucket:
                sizes[path] = size
        entries[path] = entry
    found_clips = [path for path in entries if is_clip(path) or path.is_dir()]
    if not clips:
        _warn_about_clips([path.name for path in found_clips], file.name, warn)
        entries = {path: entry for path, entry in entries.items() if path not in found_clips}
        found_clips = []
    if missing:
        lost = f"metadata_file: {len(missing)} images of '{file.name}' are skipped"
        if subset.image_dir:
            warn(f"{lost}, since they are not in '{subset.image_dir}': {some(missing)}")
        else:
            warn(f"{lost}, since they are not at the paths in it, and image_dir is not set: {some(missing)}")
    unknown = [path for path in entries if path not in sizes and path not in found_clips]
    progress.expect(len(unknown) + len(found_clips))
    sizes |= read_sizes(unknown, warn, progress)
    probes = read_probes(found_clips, warn, progress)
    controls = _metadata_controls(entries, lookup, warn, progress)
    longer = [path.name for path, entry in entries.items() if len(lines_of(entry, "caption")) > 1]
    _warn_about_lines(longer, f"of {len(entries)} captions in {file.name!r}", subset, warn)
    captions = {path: _metadata_caption(entry, subset) for path, entry in entries.items()}
    return [
        replace(
            record,
            train_resolution=_size(entries[record.path].get("train_resolution")),
            controls=controls[record.path],
        )
        for record in _records(captions, sizes, probes)
    ]


def _metadata_controls(
    entries: dict[Path, dict[str, Any]], lookup: "_ImageLookup", warn: Warn, progress: ReadingProgress
) -> dict[Path, tuple[ImageRecord, ...]]:
    """Return the control images that a metadata file names, for each image. Raises ValueError if one is missing."""
    found = {path: [(key, lookup.image(key)) for key in control_paths(entry)] for path, entry in entries.items()}
    if missing := [key for paths in found.values() for key, path in paths if path is None]:
        raise ValueError(f"metadata_file: control image not found: {some(missing)}; correct control_path")
    existing = {image: [path for _, path in paths if path] for image, paths in found.items()}
    records = control_records({path for paths in existing.values() for path in paths}, "metadata_file", warn, progress)
    return {image: tuple(records[path] for path in paths) for image, paths in existing.items()}


class _ImageLookup:
    """Finds images by metadata keys, which may lack folder and extension; lists each folder once."""

    def __init__(self, folder: Path | None):
        self._folder = folder
        self._listed: dict[Path, ByName[Path]] = {}

    def image(self, key: str) -> Path | None:
        """Return the image or clip below the folder, or else at the key's own path."""
        found = next((file for place in self._candidates(key) if (file := self._file(place))), None)
        return found or next((place for place in self._candidates(key) if place.is_dir() and find_images(place)), None)

    def cache(self, key: str) -> tuple[Path, Path | None]:
        """Return the path of an image that is gone but has cached latents, and the cache file, or None for it."""
        for place in self._candidates(key):
            # add an extension where there is none, or with_suffix would cut the name at a dot
            path = place if is_readable(place) else place.with_name(f"{place.name}.png")
            named_alike = path.with_suffix(".npz")
            beside = sorted(path.parent.glob(f"{glob.escape(path.stem)}_*"))
            sized = (c for c in beside if c.suffix in (SUFFIX, ".npz") and _size_in_name(path, c))
            if cache := next(sized, named_alike if named_alike.is_file() else None):
                return path, cache
        return Path(key), None

    def _candidates(self, key: str) -> list[Path]:
        return [self._folder / key, Path(key)] if self._folder else [Path(key)]

    def _file(self, place: Path) -> Path | None:
        names = self._names(place.parent)
        return names.get(place.name) or (None if is_readable(place) else names.get(place.name + "."))

    def _names(self, folder: Path) -> ByName[Path]:
        """Return the images of a folder by name, and by `stem.` for keys without an extension."""
        if folder not in self._listed:
            existing = existing_folder(folder)
            images = [*find_images(existing), *find_clips(existing)] if existing.is_dir() else []
            bare = {f"{path.stem}.": path for path in reversed(images)}
            self._listed[folder] = ByName(bare | {path.name: path for path in images})
        return self._listed[folder]


def _size_in_name(image: Path, cache: Path) -> Size | None:
    """Return the image size from the name of its latent cache file."""
    match = re.match(r"_(\d+)x(\d+)_", cache.name[len(image.stem) :])
    return (int(match[1]), int(match[2])) if match else None


def _size_in_cache(image: Path, cache: Path) -> Size | None:
    """Return the image size from the cache file's name or, where that has none, from its contents."""
    if size := _size_in_name(image, cache):
        return size
    from sd_scripts.data.caches.cache_files import DamagedCache, open_cache  # brings torch, which plans do without

    try:
        with open_cache(cache) as tensors:
            width, height = tensors["original_size"]
            return int(width), int(height)
    except DamagedCache:
        return None


def _size(sides: Sequence[int] | None) -> Size | None:
    return (sides[0], sides[1]) if sides else None


def _metadata_caption(entry: dict[str, Any], subset: Subset) -> str:
    """Join caption and tags; with enable_wildcard the tags follow each line of the caption."""
    glue = subset.captions.caption_separator
    tags = glue.join(lines_of(entry, "tags"))
    lines = [f"{line}{glue}{tags}" if tags else line for line in lines_of(entry, "caption")]
    return _used_lines(lines, subset) or tags
