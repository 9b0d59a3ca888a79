"""What lies in the folders: pictures, caption files, masks, metadata files."""

import glob
import json
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sd_scripts.data.blueprint import Subset, Warn
from sd_scripts.data.buckets import Size
from sd_scripts.data.images import SUFFIXES, UnreadablePicture, read_size
from sd_scripts.options.folder_names import dotted
from sd_scripts.runs.folder import read_json, write_whole


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture that can be read, with the words that belong to it."""

    path: Path
    size: Size
    caption: str
    """As written; several lines only with enable_wildcard."""
    mask: Path | None = None


def read_subset(subset: Subset, warn: Warn) -> list[Picture]:
    """The readable pictures of a subset, sorted by name; each that is left out is told."""
    if subset.metadata_file:
        captions, sizes = _read_metadata(subset)
    else:
        captions, sizes = _read_folder(subset, warn)
    sizes |= _read_sizes([path for path in captions if path not in sizes], warn)
    masks = _find_masks(subset, [path for path in captions if path in sizes])
    return [
        Picture(path=path, size=sizes[path], caption=caption, mask=masks.get(path))
        for path, caption in captions.items()
        if path in sizes
    ]


def find_pictures(folder: Path) -> list[Path]:
    """The pictures in a folder itself, sorted."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())


def read_caption(picture: Path, extension: str, *, all_lines: bool) -> str | None:
    """The first line of the file beside a picture, or all lines that are not empty; None where there is no file.

    `face_120_80_60_60.png` may share the caption file `face.txt`.
    """
    stems = [picture.stem]
    if len(fields := picture.stem.split("_")) >= 5:
        stems.append("_".join(fields[:-4]))
    for path in (picture.with_name(stem + dotted(extension)) for stem in stems):
        if path.is_file():
            lines = [line.strip() for line in _read_text(path).splitlines()]
            return "\n".join(line for line in lines if line) if all_lines else next(iter(lines), "")
    return None


def _read_folder(subset: Subset, warn: Warn) -> tuple[dict[Path, str], dict[Path, Size]]:
    folder = Path(subset.image_dir or "")
    if not folder.is_dir():
        raise ValueError(f"image_dir: there is no folder {str(folder)!r}")
    if subset.cache_info:
        return _read_cached_folder(subset, folder, warn)
    return {path: _caption_of(path, subset, warn) for path in find_pictures(folder)}, {}


def _read_cached_folder(subset: Subset, folder: Path, warn: Warn) -> tuple[dict[Path, str], dict[Path, Size]]:
    """As _read_folder, through metadata_cache.json: what has not changed since it was written is not opened again."""
    cache = folder / "metadata_cache.json"
    known = read_json(cache) or {}
    captions = {path: _caption_of(path, subset, warn) for path in find_pictures(folder)}
    stamps = {path: [path.stat().st_size, path.stat().st_mtime_ns] for path in captions}
    sizes: dict[Path, Size] = {}
    for path in captions:
        entry = known.get(str(path), {})
        if entry.get("stamp") == stamps[path]:
            sizes[path] = (entry["resolution"][0], entry["resolution"][1])
    missing = [path for path in captions if path not in sizes]
    if missing:
        sizes |= _read_sizes(missing, warn)
        entries = {
            str(path): {"caption": captions[path], "resolution": size, "stamp": stamps[path]}
            for path, size in sizes.items()
        }
        write_whole(cache, json.dumps(entries, ensure_ascii=False, indent=1))
    return {path: caption for path, caption in captions.items() if path in sizes}, sizes


def _caption_of(picture: Path, subset: Subset, warn: Warn) -> str:
    caption = read_caption(picture, subset.caption_extension, all_lines=subset.captions.enable_wildcard)
    if caption is None:
        return subset.class_tokens or ""
    if not caption:
        warn(f"{picture}: its caption file is empty, so it is trained without words")
    return caption


def _read_sizes(paths: Sequence[Path], warn: Warn) -> dict[Path, Size]:
    """Sizes of the pictures that can be opened; the others are told."""
    sizes: dict[Path, Size] = {}
    with ThreadPoolExecutor(8) as pool:  # most of the time goes into waiting for the disk
        for path, found in zip(paths, pool.map(_size_or_error, paths), strict=True):
            if isinstance(found, UnreadablePicture):
                warn(f"{found}; it is left out")
            else:
                sizes[path] = found
    return sizes


def _size_or_error(path: Path) -> Size | UnreadablePicture:
    try:
        return read_size(path)
    except UnreadablePicture as error:
        return error


def _find_masks(subset: Subset, pictures: Iterable[Path]) -> dict[Path, Path]:
    """The mask of each picture: of the same name, in conditioning_data_dir or its folder named like the subset's."""
    if not subset.conditioning_data_dir:
        return {}
    root = Path(subset.conditioning_data_dir)
    if not root.is_dir():
        raise ValueError(f"conditioning_data_dir: there is no folder {str(root)!r}")
    own = root / subset.name
    masks = {path.stem: path for folder in (root, own) if folder.is_dir() for path in find_pictures(folder)}
    found = {path: masks[path.stem] for path in pictures if path.stem in masks}
    if missing := [path.name for path in pictures if path not in found]:
        names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise ValueError(f"conditioning_data_dir: no mask in {str(root)!r} for {names}; name it like the picture")
    return found


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"caption_extension: {path} is not UTF-8 text; save it as UTF-8") from error


def _read_metadata(subset: Subset) -> tuple[dict[Path, str], dict[Path, Size]]:
    """Captions by picture from a metadata file; sizes where only a cache of the picture is left."""
    captions: dict[Path, str] = {}
    sizes: dict[Path, Size] = {}
    for key, entry in _metadata_entries(Path(subset.metadata_file or "")):
        path = _metadata_picture(key, subset.image_dir)
        captions[path] = _metadata_caption(entry, subset)
        if not path.exists() and (size := _size_without_picture(path, entry)):
            sizes[path] = size
    return captions, sizes


def _size_without_picture(path: Path, entry: dict[str, Any]) -> Size | None:
    """As the metadata file or the name of a latent cache tells it: of some pictures only the cache was kept."""
    if entry.get("image_size"):
        width, height = entry["image_size"]
        return int(width), int(height)
    names = (cache.name[len(path.stem) :] for cache in path.parent.glob(f"{glob.escape(path.stem)}_*.npz"))
    found = next((match for name in names if (match := re.match(r"_(\d+)x(\d+)_", name))), None)
    return (int(found[1]), int(found[2])) if found else None


def _metadata_entries(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """(key, entry) of `{key: entry}` in a .json file, or of lines with image_path in a .jsonl file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"metadata_file: {path} cannot be read: {error}") from error
    try:
        if path.suffix.lower() == ".jsonl":
            lines = [json.loads(line) for line in text.splitlines() if line.strip()]
            entries = [(line["image_path"], line) for line in lines]
        else:
            entries = list(json.loads(text).items())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"metadata_file: {path} is not a metadata file: {error!r}") from error
    for key, entry in entries:
        size = entry.get("image_size") if isinstance(entry, dict) else "?"
        if size is not None and not (isinstance(size, list) and len(size) == 2):
            raise ValueError(f"metadata_file: {path}: {key!r} must be a table with caption, tags or image_size [w, h]")
    return entries


def _metadata_picture(key: str, image_dir: str | None) -> Path:
    """The picture of a key that may lack folder and suffix."""
    path = Path(key) if Path(key).is_absolute() or not image_dir else Path(image_dir) / key
    if path.suffix.lower() in SUFFIXES:
        return path
    candidates = (path.with_name(path.name + suffix) for suffix in sorted(SUFFIXES))
    return next((candidate for candidate in candidates if candidate.is_file()), path)


def _metadata_caption(entry: dict[str, Any], subset: Subset) -> str:
    """Caption and tags; with wildcards the tags follow each line of the caption."""
    caption, tags = (str(entry.get(name) or "").strip() for name in ("caption", "tags"))
    lines = [line.strip() for line in caption.splitlines() if line.strip()]
    if not subset.captions.enable_wildcard:
        lines = lines[:1]
    tags = subset.captions.caption_separator.join(line.strip() for line in tags.splitlines() if line.strip())
    glue = subset.captions.caption_separator
    return "\n".join(f"{line}{glue}{tags}" if tags else line for line in lines) or tags
