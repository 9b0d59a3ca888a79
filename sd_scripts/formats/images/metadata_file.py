"""Reads and writes the fine-tuning metadata file: caption, tags and size of each image in one JSON file.

`{key: {caption, tags, train_resolution [w, h], image_size [w, h]}}`; a .jsonl file has a line per image, with the key
in `image_path`, or in `video_path` for a clip. Control images are in `control_path`, or `control_path_0`,
`control_path_1`, ...
Torch-free, so that the page can write one.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.documents import filled_lines, parse_json, read_text, split_lines
from sd_scripts.formats.images.caption_files import find_captions, read_captions
from sd_scripts.formats.images.folder_names import ByName, dotted
from sd_scripts.formats.images.image_folders import LONGEST_SIDE, SHORTEST_SIDE, find_images
from sd_scripts.formats.words import some

Entries = dict[str, dict[str, Any]]
Words = Literal["caption", "tags"]
SIZES = ("train_resolution", "image_size")


@dataclass(frozen=True, kw_only=True)
class Merged:
    """The result of a merge."""

    entries: Entries
    images: int
    wordless: list[Path]
    """Images without a text file."""

    def wordless_text(self, extension: str) -> str:
        """Describe the images without text in one sentence; empty if there are none."""
        names = [path.name for path in self.wordless]
        how = f"{len(names)} of {self.images} images have no {dotted(extension)} file, or an empty one"
        return f"{how}: {some(names)}" if names else ""


def read_metadata(path: Path, option: str) -> Entries:
    """Read a .json or .jsonl metadata file. Raises ValueError, one sentence that names `option`, for any other file."""
    try:
        text = read_text(path)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from error
    try:
        if path.suffix.lower() == ".jsonl":
            lines = [parse_json(line) for line in split_lines(text) if line.strip()]
            entries = {str(line["video_path" if "video_path" in line else "image_path"]): line for line in lines}
        else:
            entries = dict(parse_json(text).items())
    except ValueError as error:
        raise ValueError(f"{option}: '{path}' is not a metadata file: {error}") from error
    except (KeyError, TypeError, AttributeError):
        wanted = (
            "an image_path or a video_path in each line"
            if path.suffix.lower() == ".jsonl"
            else "a table with an entry for each image"
        )
        raise ValueError(f"{option}: '{path}' is not a metadata file: it must contain {wanted}") from None
    for key, entry in entries.items():
        if not isinstance(entry, dict) or not all(_is_size(entry.get(name)) for name in SIZES):
            raise ValueError(f"{option}: {path}: {key!r} must be a table with caption, tags or {SIZES[0]} [w, h]")
        size = entry.get("train_resolution")
        if size and not all(SHORTEST_SIDE <= side <= LONGEST_SIDE for side in size):
            why = f"{size[0]}x{size[1]}, has a side outside {SHORTEST_SIDE}..{LONGEST_SIDE}"
            raise ValueError(f"{option}: {path}: the train_resolution of {key!r}, {why}; choose another, or remove it")
        if wrong := [name for name in get_args(Words) if not _is_words(entry.get(name))]:
            raise ValueError(f"{option}: {path}: {wrong[0]} of {key!r} must be a string or a list of strings")
    return entries


def lines_of(entry: Mapping[str, Any], words: Words) -> list[str]:
    """Return the lines of an entry's caption or tags that are not empty; they may be a list of texts."""
    written = entry.get(words) or ()
    texts = [written] if isinstance(written, str) else written
    return [line for text in texts for line in filled_lines(text)]


def control_paths(entry: Mapping[str, Any]) -> list[str]:
    """Return the control images of an entry, in the order of their numbers."""
    found = ((re.fullmatch(r"control_path(?:_(\d+))?", key), value) for key, value in entry.items())
    numbered = [(int(match[1] or -1), str(value)) for match, value in found if match and value]
    return [value for _, value in sorted(numbered)]


def check_target(path: Path, option: str) -> None:
    """Raise ValueError if no metadata file can be written at `path`; called before the work starts."""
    if path.suffix.lower() != ".json":
        raise ValueError(f"{option}: {path} must end in .json")
    if not path.parent.is_dir():
        raise ValueError(f"{option}: folder not found: '{path.parent}'")


def write_metadata(path: Path, entries: Mapping[str, Any], option: str) -> None:
    """Write a .json file atomically. Raises ValueError, one sentence that names `option`, if that fails."""
    try:
        write_whole(path, json.dumps(entries, ensure_ascii=False, indent=2) + "\n")
    except OSError as error:
        raise ValueError(f"{option}: {path} cannot be written: {error.strerror or error}") from error


def require_images(folder: Path, *, recursive: bool, option: str = "train_data_dir") -> list[Path]:
    """Return the images in a folder, and with `recursive` in those below it, sorted. Raises ValueError, naming
    `option`, if there are none."""
    if not folder.is_dir():
        raise ValueError(f"{option}: folder not found: {str(folder)!r}")
    images = find_images(folder, recursive=recursive)
    if not images:
        more = "" if recursive else "; turn on recursive to include its subfolders"
        raise ValueError(f"{option}: no image (png, jpg, webp, bmp) in {str(folder)!r}{more}")
    return images


def keys_of(images: Iterable[Path], folder: Path, known: Mapping[str, Any], *, full_path: bool) -> dict[Path, str]:
    """Return the key of each image: its full path, or its path below `folder`, without extension if that is unique.
    A `known` key of a different form is kept."""
    images = list(images)
    stems = Counter(path.with_suffix("") for path in images)
    keys = {}
    known_keys = ByName({key: key for key in known})
    for path in images:
        below = path.relative_to(folder)
        bare = below.with_suffix("") if stems[path.with_suffix("")] == 1 else below
        wanted = str(path.absolute()) if full_path else bare.as_posix()
        others = (str(path.absolute()), str(path), below.as_posix(), bare.as_posix())
        keys[path] = known_keys.first((wanted, *others)) or wanted
    return keys


def merge_words(
    folder: Path,
    entries: Mapping[str, Any],
    words: Words,
    extension: str,
    *,
    full_path: bool = False,
    recursive: bool = False,
    option: str = "train_data_dir",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Merged:
    """Use the text file with `extension` next to each image as its caption or tags; keep the other entries.

    Raises ValueError in one sentence for a folder without images and for all texts that are not UTF-8.
    """
    images = require_images(folder, recursive=recursive, option=option)
    keys = keys_of(images, folder, entries, full_path=full_path)
    merged = {key: dict(entry) for key, entry in entries.items()}
    by_folder: dict[Path, list[Path]] = {}
    for path in images:
        by_folder.setdefault(path.parent, []).append(path)
    found = [find_captions(below, paths, extension).found for below, paths in by_folder.items()]
    files = {path: file for captions in found for path, file in captions.items()}
    texts = read_captions(_files_of(images, files, progress))
    wordless = []
    for path in images:
        entry = merged.setdefault(keys[path], {})
        if lines := texts[files[path]] if path in files else []:
            entry[words] = "\n".join(lines)
        else:
            wordless.append(path)
    return Merged(entries=merged, images=len(images), wordless=wordless)


def _files_of(
    images: Collection[Path], files: Mapping[Path, Path], progress: Callable[[int, int], None]
) -> Iterator[Path]:
    for done, image in enumerate(images, 1):
        if image in files:
            yield files[image]
        progress(done, len(images))


def _is_words(value: Any) -> bool:
    texts = value if isinstance(value, list) else [value]
    return value is None or all(isinstance(text, str) for text in texts)


def _is_size(value: Any) -> bool:
    whole = isinstance(value, list) and len(value) == 2 and all(type(side) is int and side > 0 for side in value)
    return value is None or whole
