"""The dataset that a request is about: its folders, and where the captions of its images are."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from kohya_gui.access.allowed_paths import AllowedPaths
from sd_scripts.formats.documents import read_document
from sd_scripts.formats.editing.dataset_toml import Subset, subsets_in
from sd_scripts.formats.editing.editor import Editor
from sd_scripts.formats.editing.places import Place, caption_places
from sd_scripts.formats.images.caption_files import ANY_IMAGES
from sd_scripts.formats.images.folder_names import is_ending, numbered
from sd_scripts.formats.images.image_folders import find_media, has_suffix
from sd_scripts.formats.images.mask_files import usual_root
from sd_scripts.formats.images.metadata_file import keys_of, read_metadata

MOST_IMAGES = 100_000
USUAL_EXTENSION = ".txt"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A folder of images, or a metadata file."""

    folder: Path | None
    extension: str
    metadata: Path | None = None
    masks: tuple[Path, ...] = ()
    """Folders with the masks and control images of its images."""
    mask_root: Path | None = None
    """Where its masks are, or will be; None for a metadata file."""


@dataclass(frozen=True, kw_only=True)
class OpenedSet:
    """A folder, a dataset_config or a metadata file that a page has open. All of its paths are allowed."""

    place: Path
    sources: tuple[Source, ...]
    subsets: tuple[Subset, ...] = ()
    """Of a dataset_config."""

    @property
    def scope(self) -> str:
        """Under which its edits are remembered."""
        return str(self.place)

    @cached_property
    def folders(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(source.folder for source in self.sources if source.folder))

    def all_images(self) -> list[Path]:
        """Return the images in the folders of the set."""
        return [image for folder in self.folders if folder.is_dir() for image in find_media(folder)]

    def named_images(self, named: Any) -> list[Path]:
        """Return the images that a request names, `{folder: [name, ...]}`; None are all.

        Raises ValueError for a file that is not an image in a folder of the set.
        """
        if named is None:
            return self.all_images()
        if not isinstance(named, Mapping):
            raise ValueError("images: must list file names by folder")
        known = {str(folder): folder for folder in self.folders}
        images: list[Path] = []
        for folder, names in named.items():
            if folder not in known or not isinstance(names, list):
                raise ValueError(f"images: '{folder}' is not a folder of this dataset; open it again")
            images += [known[folder] / image_name(name) for name in names]
        if len(images) > MOST_IMAGES:
            raise ValueError(f"images: {len(images):,} are too many; the maximum is {MOST_IMAGES:,}")
        return images

    def places(self, images: Iterable[Path], allowed_paths: AllowedPaths) -> dict[Path, Place]:
        """Return where the captions of images are. An image without an entry in its metadata file has none.

        Raises ValueError for a caption that is a link out of the allowed folders.
        """
        found: dict[Path, Place] = {}
        for source, within in self.groups(images):
            found |= _entries(source, within) if source.metadata else caption_places(within, source.extension)
        if allowed_paths.allowed is not None:
            for file in {place.file for place in found.values()}:
                allowed_paths.check("caption", file)
        return found

    def groups(self, images: Iterable[Path]) -> Iterator[tuple[Source, list[Path]]]:
        """Yield the images by the source that they are in."""
        by_folder = {source.folder: source for source in reversed(self.sources)}
        grouped: dict[Path | None, list[Path]] = {}
        for image in images:
            grouped.setdefault(image.parent if image.parent in by_folder else None, []).append(image)
        for folder, within in grouped.items():
            if folder in by_folder:
                yield by_folder[folder], within


def image_name(name: Any) -> str:
    """Return a name from a request if it can be an image in a folder. Raises ValueError."""
    if not isinstance(name, str) or "/" in name or "\\" in name or "\0" in name:
        raise ValueError(f"images: {name!r} is not the name of an image")
    if not has_suffix(name, ANY_IMAGES):
        raise ValueError(f"images: '{name}' is not an image")
    return name


def opened(body: Mapping[str, Any], allowed_paths: AllowedPaths) -> OpenedSet:
    """Return the dataset at the `place` that a request names. Raises ValueError, one sentence."""
    place, extension = body.get("place"), body.get("extension") or USUAL_EXTENSION
    if not isinstance(place, str) or not place.strip():
        raise ValueError("place: type the folder of the images")
    if not isinstance(extension, str) or not is_ending(extension) or len(extension) > 20:
        raise ValueError("caption_extension: must be a file extension, such as .txt")
    path = allowed_paths.check("place", place.strip().strip('"'))
    masks = _mask_folders(body.get("masks"))
    if path.is_dir():
        folders = [path, *(each for each in sorted(path.iterdir()) if each.is_dir() and numbered(each.name))]
        sources = tuple(_source(each, extension, masks, body.get("mask_folder"), allowed_paths) for each in folders)
        return _allowed(OpenedSet(place=path, sources=sources), allowed_paths)
    match path.suffix.lower():
        case ".toml":
            return _allowed(_configured(path, extension, allowed_paths), allowed_paths)
        case ".json" | ".jsonl":
            is_config = path.suffix.lower() == ".json" and "datasets" in read_document(path)
            opened_set = (
                _configured(path, extension, allowed_paths)
                if is_config
                else _with_metadata(path, body.get("image_dir"))
            )
            return _allowed(opened_set, allowed_paths)
    raise ValueError(f"place: '{place}' is neither a folder nor a dataset file (.toml, .json, .jsonl)")


def next_labels(editor: Editor, scope: str) -> dict[str, str | None]:
    """Return the names of the edits that undo and redo would turn, for the page; None without one."""
    undo, redo = editor.next_actions(scope)
    return {"undo": undo.label if undo else None, "redo": redo.label if redo else None}


def _source(
    folder: Path, extension: str, beside: tuple[Path, ...], mask_folder: Any, allowed_paths: AllowedPaths
) -> Source:
    """Return a folder of images whose masks are in `mask_folder`, if that is named."""
    is_named = isinstance(mask_folder, str) and mask_folder.strip()
    root = _path(mask_folder) if is_named else usual_root(folder)
    has_masks = root.is_dir() and (is_named or allowed_paths.holds(root))
    masks = dict.fromkeys((*beside, *([root] if has_masks else [])))
    return Source(folder=folder, extension=extension, masks=tuple(masks), mask_root=root)


def _mask_folders(named: Any) -> tuple[Path, ...]:
    """Return the folders of masks and control images that the settings of a training name."""
    if named is None:
        return ()
    if not isinstance(named, list) or not all(isinstance(path, str) for path in named):
        raise ValueError("masks: must be a list of folders")
    return tuple(_path(path) for path in named if path.strip())


def _configured(path: Path, extension: str, allowed_paths: AllowedPaths) -> OpenedSet:
    subsets = subsets_in(path)
    sources = []
    for subset in subsets:
        values = subset.values
        beside = tuple(_path(values[key]) for key in ("control_directory",) if values.get(key))
        if folder := values.get("image_dir"):
            ending = str(values.get("caption_extension") or extension)
            source = _source(_path(folder), ending, beside, values.get("conditioning_data_dir"), allowed_paths)
            if metadata := values.get("metadata_file"):
                source = replace(source, metadata=_path(metadata), mask_root=None)
            sources.append(source)
        elif metadata := values.get("metadata_file"):
            sources += _with_metadata(_path(metadata), None).sources
    return OpenedSet(place=path, sources=tuple(sources), subsets=tuple(subsets))


def _with_metadata(path: Path, image_dir: Any) -> OpenedSet:
    entries = read_metadata(path, "metadata_file")
    folders = {Path(key).parent for key in entries if Path(key).is_absolute()}
    named = [_path(image_dir)] if isinstance(image_dir, str) and image_dir.strip() else []
    folders |= {folder / Path(key).parent for folder in named or [path.parent] for key in entries}
    found = [Source(folder=f, extension=USUAL_EXTENSION, metadata=path) for f in sorted(folders) if f.is_dir()]
    return OpenedSet(place=path, sources=tuple(found))


def _path(value: Any) -> Path:
    return Path(str(value)).expanduser().absolute()


def _allowed(opened_set: OpenedSet, allowed_paths: AllowedPaths) -> OpenedSet:
    for source in opened_set.sources:
        for name, path in (("image_dir", source.folder), ("metadata_file", source.metadata)):
            if path:
                allowed_paths.check(name, path)
        for path in source.masks:
            allowed_paths.check("conditioning_data_dir", path)
    return opened_set


def _entries(source: Source, images: Sequence[Path]) -> dict[Path, Place]:
    assert source.metadata
    assert source.folder
    entries = read_metadata(source.metadata, "metadata_file")
    present = [image for image in images if image.parent == source.folder]
    keys = keys_of(present, _root(source.folder, entries), entries, full_path=False)
    return {
        image: Place(source.metadata, key, "tags" if entry.get("tags") and not entry.get("caption") else "caption")
        for image, key in keys.items()
        if (entry := entries.get(key)) is not None
    }


def _root(folder: Path, keys: Iterable[str]) -> Path:
    """Return the folder that relative keys of a metadata file start from, as far as its images show."""
    depths = {len(Path(key).parts) - 1 for key in keys if not Path(key).is_absolute()}
    root = folder
    for _ in range(min(depths, default=0)):
        root = root.parent
    return root
