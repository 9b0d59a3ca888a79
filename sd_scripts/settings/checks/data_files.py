"""Check, without torch, that the folders and files that describe a run's data exist and contain images."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from sd_scripts.families.cards.registry import card_of
from sd_scripts.formats.clips.clip_files import find_clips, find_frame_folders
from sd_scripts.formats.documents import name_problem
from sd_scripts.formats.images.control_images import find_controls
from sd_scripts.formats.images.image_folders import (
    FoundFolders,
    each_image,
    find_images,
    image_folders,
    is_readable,
    regularisation_folders,
)
from sd_scripts.formats.images.metadata_file import read_metadata
from sd_scripts.formats.words import first, some
from sd_scripts.options.dataset import (
    VARY_CAPTIONS,
    VARY_IMAGES,
    AugmentOptions,
    CacheOptions,
    ControlOptions,
    DatasetOptions,
)
from sd_scripts.settings import dataset_schema as schema
from sd_scripts.settings.settings import Script, reading

IMAGES = "images (png, jpg, webp, bmp)"
CLIPS = " or videos (mp4, mov, webm, mkv)"
PLACES = ("metadata_file", "image_dir", "conditioning_data_dir", "control_directory")
"""Keys of a subset that name a file or folder."""


def _images(option: str, find: Callable[..., FoundFolders], script: Script, options: DatasetOptions) -> Iterator[str]:
    """Check the folders that an option names, unless dataset_config or in_json describe the data."""
    if options.dataset_config or options.in_json or not (root := getattr(options, option)):
        return
    found = find(Path(root), options.num_repeats, allow_many_repeats=options.allow_many_repeats)
    if found.problem:
        yield f"{option}: {found.problem}"
        return
    try:
        clips = card_of(script.family).clips is not None
        empty = found.folders and not any(_has_images(folder.path, clips=clips) for folder in found.folders)
    except OSError as error:
        yield f"{option}: {error.filename!r} cannot be read: {error.strerror}"
        return
    if empty:
        names = some([folder.path.name for folder in found.folders])
        kinds = f"{IMAGES}{CLIPS}" if clips else IMAGES
        yield f"{option}: no {kinds} in {names}; add some or choose another folder"


def _has_images(folder: Path, *, clips: bool) -> bool:
    """Return whether a folder has images, or with `clips` video files or folders of frames."""
    if any(map(is_readable, each_image(folder))):
        return True
    return clips and bool(find_clips(folder) or find_frame_folders(folder))


def metadata(options: DatasetOptions) -> Iterator[str]:
    if not options.in_json or options.dataset_config:
        return
    if options.train_data_dir and not Path(options.train_data_dir).is_dir():
        yield f"train_data_dir: folder not found: {options.train_data_dir!r}"
    if not read_metadata(Path(options.in_json), "in_json"):
        yield f"in_json: '{options.in_json}' lists no images"


def masks(options: DatasetOptions, augmenting: AugmentOptions) -> Iterator[str]:
    folder = options.conditioning_data_dir
    used = augmenting.masked_loss and not options.dataset_config
    if folder and used and not Path(folder).is_dir():
        yield f"conditioning_data_dir: folder not found: {folder!r}"


def controls(script: Script, options: DatasetOptions, chosen: ControlOptions) -> Iterator[str]:
    """Check that each image of train_data_dir has its control images, in a family that is trained with them."""
    card = card_of(script.family)
    if options.dataset_config or options.in_json or not (root := options.train_data_dir):
        return
    clips = card.clips is not None
    if not chosen.control_directory and (clips or not card.needs_controls):  # a variant of clips may need none
        return
    if not chosen.control_directory:
        yield f"control_directory: not set; choose the folder with the control images that {card.title} is trained with"
        return
    found = image_folders(Path(root), options.num_repeats, allow_many_repeats=options.allow_many_repeats)
    for folder in found.folders:
        if why := _controls_problem(chosen.control_directory, folder.path, clips=clips):
            yield f"control_directory: {why}"


def _controls_problem(directory: str, folder: Path, *, clips: bool) -> str:
    """Return the problems of a folder's control images; empty without any."""
    try:
        images = [image for image in find_images(folder) if is_readable(image)]
        find_controls(directory, folder.name, [*images, *(find_clips(folder) if clips else ())], clips=clips)
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def dataset_config(script: Script, options: DatasetOptions, augmenting: AugmentOptions) -> Iterator[str]:
    """Check the file, and the folders and metadata files that it names."""
    if not (file := options.dataset_config):
        return
    config = schema.read_config(Path(file))
    lines = schema.read_lines(Path(file))
    yield from (
        f"dataset_config: {problem}"
        for problem in schema.problems(config, masked_loss=augmenting.masked_loss, lines=lines)
    )
    if not options.resolution:
        for path in schema.without_resolution(config):
            yield f"dataset_config: {schema.located(path, lines)} has no resolution; set it there or in [general]"
    filters = schema.OPTIONS["resize_interpolation"].choices
    for path, value in schema.effective(config, "resize_interpolation").items():
        if value not in filters:
            yield f"dataset_config: {schema.located(path, lines)} must be one of {', '.join(filters)}, not {value!r}"
    wrong = (
        f"dataset_config: {schema.located(f'{path}.{key}', lines)}: {why}"
        for path, subset in _different(config)
        for key, why in _subset(subset, clips=card_of(script.family).clips is not None)
    )
    yield from first(wrong, "dataset_config: more files and folders have problems, which are not listed")


def varying_data_with_cache(options: DatasetOptions, cache: CacheOptions) -> Iterator[str]:
    if not (file := options.dataset_config):
        return
    config = schema.read_config(Path(file))
    lines = schema.read_lines(Path(file))
    for key, what in _varying(cache):
        for path, value in schema.effective(config, key).items():
            if value:
                yield f"dataset_config: {schema.located(path, lines)} changes {what}; turn it off or disable the cache"


def _varying(cache: CacheOptions) -> Iterator[tuple[str, str]]:
    """Yield the keys that rule out the caches of a run, and why. A face crop is left out of cached latents instead."""
    if cache.caches_latents:
        images = "images at every step, so latents cannot be cached"
        yield from ((key, images) for key in VARY_IMAGES if key != "face_crop_aug_range")
    if cache.caches_text:
        yield from ((key, "captions at every step, so they cannot be cached") for key in VARY_CAPTIONS)


def _different(config: schema.Config) -> Iterator[tuple[str, schema.Config]]:
    """Yield the subsets of a description with their paths, each combination of files and folders once."""
    seen = set()
    for path, subset in schema.each_subset(config):
        named = tuple(str(subset.get(key)) for key in PLACES)
        if named not in seen:
            seen.add(named)
            yield path, subset


def _subset(subset: schema.Config, *, clips: bool) -> Iterator[tuple[str, str]]:
    """Yield the key and the problem of each file and folder that a subset names."""
    metadata_file, folder, masks, directory = (
        os.path.expanduser(value) if isinstance(value := subset.get(key), str) and "\0" not in value else ""
        for key in PLACES
    )
    if subset.get("media") == "clips" and not clips:
        yield "media", "is clips, but this model is trained on images alone; choose a video model, or remove the subset"
        return
    named = {"metadata_file": metadata_file, "image_dir": folder, "conditioning_data_dir": masks}
    if wrong := {key: why for key, place in named.items() if (why := name_problem(place))}:
        yield from wrong.items()
        return
    try:
        if folder and not os.path.isdir(folder):
            yield "image_dir", f"folder not found: {folder!r}"
        elif folder and not metadata_file and not _has_images(Path(folder), clips=clips):
            yield "image_dir", f"no {IMAGES}{CLIPS * clips} in {folder!r}"
    except OSError as error:
        yield "image_dir", f"{folder!r} cannot be read: {error.strerror}"
    if directory and os.path.isdir(folder) and (why := _controls_problem(directory, Path(folder), clips=clips)):
        yield "control_directory", why
    if masks and not os.path.isdir(masks):
        yield "conditioning_data_dir", f"folder not found: {masks!r}"
    if metadata_file:
        try:
            read_metadata(Path(metadata_file), "metadata_file")
        except ValueError as error:
            yield "metadata_file", str(error).removeprefix("metadata_file: ")


CHECKS = (
    reading(partial(_images, "train_data_dir", image_folders), Script, DatasetOptions),
    reading(partial(_images, "reg_data_dir", regularisation_folders), Script, DatasetOptions),
    reading(metadata, DatasetOptions),
    reading(masks, DatasetOptions, AugmentOptions),
    reading(controls, Script, DatasetOptions, ControlOptions),
    reading(dataset_config, Script, DatasetOptions, AugmentOptions),
    reading(varying_data_with_cache, DatasetOptions, CacheOptions),
)
