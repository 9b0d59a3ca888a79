"""The model files on this machine: folders that are scanned, files recognised by header, and where each is used."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.form.browse import first_folder
from kohya_gui.form.recognise import described
from kohya_gui.models.remote import name_for
from sd_scripts.families.cards.model_file import ModelFile, describe
from sd_scripts.families.cards.registry import card_of, cards
from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.documents import read_document
from sd_scripts.formats.private import private_folder
from sd_scripts.options.model import MODEL
from sd_scripts.runs.folder import RunFolder, read_json
from sd_scripts.runs.store import RunStore

SUFFIXES = (".safetensors", ".sft", ".ckpt", ".pt", ".pth")
DEEPEST, MOST_FOLDERS, MOST_FILES = 5, 2000, 500
"""Limits of a scan: somebody may add their home folder."""
MOST_LISTED = 20
RUNS = 200
"""Newest runs that are searched for a file."""
FURTHER_SHARD = re.compile(r".+-(?!00001)\d{5}-of-\d{5}")
LORA = "network_weights"


@dataclass(frozen=True, kw_only=True)
class Use:
    """A field of a family that a file fits."""

    family: str
    option: str


@dataclass(frozen=True, kw_only=True)
class LibraryFile:
    path: Path
    file: ModelFile

    @property
    def uses(self) -> tuple[Use, ...]:
        """The fields that it fits; of families whose base model it is, else of those that expect such a component."""
        if self.file.problem:
            return ()
        if self.file.is_base_model and self.file.family:
            listed = _listed_by().get(self.path.name, "")
            family = listed if listed and card_of(listed).trains(self.file.family) else self.file.family
            others = [each for each in _component_uses(self.file.variant) if each.option != MODEL]
            return (Use(family=family, option=MODEL), *others)
        if self.file.variant.endswith("LoRA"):
            return (Use(family=self.file.family, option=LORA),) if self.file.family else ()
        return tuple(_component_uses(self.file.variant))


@cache
def _listed_by() -> Mapping[str, str]:
    """Return the family that lists a base model of this file name: the files of a derived family have the headers of
    the family that it is derived from."""
    return {
        name_for(each.repo, each.file): card.name for card in cards() for each in card.hub.files if each.option == MODEL
    }


def _component_uses(variant: str) -> list[Use]:
    return [
        Use(family=card.name, option=component.option)
        for card in cards()
        for component in card.files.components
        if variant and (variant in component.fitting or (component.option == "vae" and component.kind == variant))
    ]


class Library:
    """The folders with models that a user listed, the first of which is where downloads are saved."""

    def __init__(self, file: Path, allowed_paths: AllowedPaths) -> None:
        self._file = file
        self._allowed_paths = allowed_paths

    @property
    def folders(self) -> list[Path]:
        """Return the folders, first that of downloads; never one that is not allowed."""
        content = read_json(self._file)
        listed = content.get("folders") if isinstance(content, dict) else None
        paths = [Path(each) for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
        allowed = [path for path in paths if self._holds(path)]
        return allowed or self._default()

    def set(self, folders: object) -> None:
        """List these folders instead. Raises ValueError, one sentence."""
        if not isinstance(folders, list) or not folders or len(folders) > MOST_LISTED:
            raise ValueError(f"folder: list 1 to {MOST_LISTED} folders")
        checked = [self._checked(folder) for folder in folders]
        private_folder(self._file.parent)
        write_whole(self._file, json.dumps({"folders": [str(path) for path in dict.fromkeys(checked)]}))

    def scan(self) -> tuple[list[LibraryFile], bool]:
        """Return the model files in the folders, by path, and whether there are more than were looked at."""
        found: dict[Path, LibraryFile] = {}
        for number, path in enumerate(self._files()):
            if number >= MOST_FILES:
                return [*found.values()], True
            with contextlib.suppress(OSError):
                status = path.stat()
                found[path] = LibraryFile(path=path, file=_described(path, status.st_mtime_ns, status.st_size))
        return [*found.values()], False

    def _files(self) -> Iterator[Path]:
        """Yield model files and diffusers folders, each folder's files in their order."""
        seen: set[Path] = set()
        waiting = [(folder, 0) for folder in reversed(self.folders)]
        while waiting and len(seen) < MOST_FOLDERS:
            folder, depth = waiting.pop()
            real = Path(os.path.realpath(folder))
            if real in seen or not self._holds(folder):
                continue
            seen.add(real)
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name.lower())
            except OSError:  # removed, or not ours
                continue
            if any(entry.name == "model_index.json" for entry in entries):
                yield folder
                continue
            visible = [entry for entry in entries if not entry.name.startswith(".")]
            for entry in visible:
                path = Path(entry.path)
                is_model = entry.name.endswith(SUFFIXES) and not FURTHER_SHARD.fullmatch(path.stem)
                if is_model and entry.is_file() and self._holds(path):
                    yield path
            if depth < DEEPEST:
                waiting += [(Path(entry.path), depth + 1) for entry in reversed(visible) if entry.is_dir()]

    def _default(self) -> list[Path]:
        home = Path.home() / "models"
        if self._holds(home):
            return [home]
        try:
            return [first_folder(self._allowed_paths) / "models"]
        except ValueError:
            return []

    def _holds(self, path: Path) -> bool:
        try:
            return self._allowed_paths.holds(path)
        except (OSError, ValueError):
            return False

    def _checked(self, folder: object) -> Path:
        if not isinstance(folder, str) or not folder.strip():
            raise ValueError("folder: not set; choose a folder for models")
        path = self._allowed_paths.check("folder", folder)
        if path.exists() and not path.is_dir():
            raise ValueError(f"folder: '{folder}' is a file; choose a folder")
        return path


@lru_cache(maxsize=4 * MOST_FILES)
def _described(path: Path, changed: int, size: int) -> ModelFile:
    return describe(path)


def used_by(store: RunStore) -> Callable[[Path], list[dict[str, Any]]]:
    """Return a function that names the runs whose settings name a file, newest first."""
    by_path: dict[str, list[dict[str, Any]]] = {}
    for row in store.rows(RUNS):
        run = {"id": row.id, "name": row.name}
        for path in _paths_in(RunFolder(row.folder).config):
            by_path.setdefault(path, []).append(run)
    return lambda path: by_path.get(str(path), [])


def _paths_in(config: Path) -> frozenset[str]:
    try:
        return _read_paths(config, config.stat().st_mtime_ns)
    except OSError:
        return frozenset()


@lru_cache(maxsize=2 * RUNS)
def _read_paths(config: Path, changed: int) -> frozenset[str]:
    try:
        content = read_document(config)
    except (OSError, ValueError):
        return frozenset()
    return frozenset(os.path.abspath(os.path.expanduser(text)) for text in _texts(content) if text.endswith(SUFFIXES))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, Sequence):
        for each in value:
            yield from _texts(each)


def row(entry: LibraryFile, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a file for the page."""
    return {
        "path": str(entry.path),
        "name": entry.path.name,
        "folder": str(entry.path.parent),
        "text": (entry.file.problem or described(entry.file)).replace(f"'{entry.path}'", "This"),
        "problem": bool(entry.file.problem),
        "bytes": entry.file.bytes,
        "uses": [vars(use) for use in entry.uses],
        "runs": list(runs),
    }
