"""Paths that the page may read and write: anywhere when served locally, named folders when served to others."""

import contextlib
import errno
import ntpath
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from sd_scripts.families.cards.model_file import is_hub_id
from sd_scripts.formats.documents import read_document
from sd_scripts.formats.images.metadata_file import control_paths, read_metadata
from sd_scripts.formats.words import shell_words
from sd_scripts.options.generating.prompt_lines import PromptFile, SamplePrompt, read_prompt_file
from sd_scripts.options.spec import Option
from sd_scripts.settings.settings import Settings

ReadPrompts = Callable[[Path], PromptFile]
NO_PATHS = {"resume": ("latest",)}
"""Keywords that an option takes in place of a path."""
HUB_NAMES = ("pretrained_model_name_or_path", "vae")
"""Options that also take a Hugging Face Hub model id."""
METADATA_KEYS = ("metadata_file", "image_jsonl_file")
PATH_KEYS = ("image_dir", "image_directory", "conditioning_data_dir", "control_directory", *METADATA_KEYS)
"""Keys of a dataset_config whose values are paths."""
NAMES_IN = {"output_name": "output_dir", "log_prefix": "logging_dir", "log_tracker_name": "logging_dir"}
"""Options that name a file in the folder of another option: a / in them leads to a different folder."""

NO_PATH = {
    errno.ENAMETOOLONG: "is too long for a path, or has a name longer than 255 bytes; shorten it",
    errno.ELOOP: "is a link that points back to itself; name the folder or file itself",
}
"""Problems of a path at which nothing can exist."""


@dataclass(frozen=True)
class AllowedPaths:
    """The folders and files that the page may access, including everything below them."""

    allowed: tuple[Path, ...] | None = None
    """None allows everything."""

    @classmethod
    def within(cls, folders: Iterable[Path]) -> "AllowedPaths":
        """Allow only these. The root of a disk is dropped: a GUI started there would allow everything."""
        real = (_real(folder.expanduser()) for folder in folders)
        return cls(tuple(dict.fromkeys(folder for folder in real if folder != folder.parent)))

    def check(self, option: str, path: str | os.PathLike[str]) -> Path:
        """Return the path, absolute and with ~ expanded.

        Raises ValueError naming the option if the path or a link in it leads outside or cannot be a path, without
        revealing whether anything exists there.
        """
        text = os.fspath(path).strip()
        if "\x00" in text:
            raise ValueError(f"{option}: a path cannot contain a null character")
        try:
            os.fsencode(text)
        except UnicodeEncodeError:
            raise ValueError(f"{option}: {text!a} contains characters that are not valid in a path") from None
        absolute = Path(os.path.expanduser(text)).absolute()
        if not self.holds(absolute):
            raise ValueError(
                f"{option}: '{text}' is outside the allowed folders; start the GUI with --allowed_path and its folder"
            )
        try:
            os.stat(absolute)
        except OSError as error:
            if problem := NO_PATH.get(error.errno or 0):
                raise ValueError(f"{option}: '{_short(text)}' {problem}") from None
        return absolute

    def holds(self, path: Path) -> bool:
        """Return whether a path, and its link target, are in an allowed folder."""
        if self.allowed is None:
            return True
        where = Path(os.path.realpath(path.parent)) / path.name  # a link may be overwritten, not only followed
        return all(any(p.is_relative_to(folder) for folder in self.allowed) for p in (where, _real(path)))

    def problems_of(self, settings: Settings) -> list[str]:
        """Return a sentence for each disallowed path in settings."""
        read_prompts = partial(settings.read_once, read_prompt_file)
        return self.problems(settings.values(), settings.options.values(), read_prompts)

    def problems(
        self, values: Mapping[str, Any], options: Iterable[Option], read_prompts: ReadPrompts = read_prompt_file
    ) -> list[str]:
        """Return a sentence for each disallowed path in the values of these options."""
        if self.allowed is None:
            return []
        problems = (self.problem(name, path, read_prompts) for name, path in _paths(values, options))
        return [problem for problem in problems if problem]

    def problem(self, name: str, path: str, read_prompts: ReadPrompts = read_prompt_file) -> str | None:
        """Return why an option cannot have this path; None if it can, or if the value is not a path."""
        if self.allowed is None:
            return None
        if path in NO_PATHS.get(name, ()) or (name in HUB_NAMES and is_hub_id(path) and not os.path.lexists(path)):
            return None
        try:
            absolute = self.check(name, path)
            if name == "dataset_config":
                for key, inner in _inside(absolute):
                    self.check(f"dataset_config: {key}", inner)
                    if key in METADATA_KEYS:
                        self._check_keys(f"dataset_config: {key}", Path(inner))
            if name == "in_json":
                self._check_keys(name, absolute)
            if name == "sample_prompts":
                for key, image in _prompt_images(read_prompts(absolute)):
                    self.check(f"{name}: {key}", image)
        except ValueError as error:
            return str(error)
        return None

    def _check_keys(self, name: str, metadata: Path) -> None:
        """Raise ValueError if a metadata file has an image path outside the allowed folders among its keys."""
        try:
            entries = read_metadata(metadata, name)
        except (ValueError, RecursionError):  # training could not read it either
            return
        keys = [*entries, *(path for entry in entries.values() for path in control_paths(entry))]
        for key in keys:
            if PurePath(key).anchor or ntpath.splitdrive(key)[0]:
                self.check(name, key)
            elif ".." in re.split(r"[/\\]", key):
                raise ValueError(f"{name}: the image '{key}' leads out of its folder; use its full path")


EVERYWHERE = AllowedPaths()


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:60]}...{text[-20:]}"


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _paths(values: Mapping[str, Any], options: Iterable[Option]) -> Iterator[tuple[str, str]]:
    for option in options:
        value = values.get(option.name)
        if option.path:
            paths = value if isinstance(value, list) else [value]
            yield from ((option.name, path) for path in paths if isinstance(path, str) and path.strip())
        elif option.name in NAMES_IN and isinstance(value, str):
            yield option.name, os.path.join(values.get(NAMES_IN[option.name]) or ".", value)
        elif option.name == "extra_accelerate_launch_args" and isinstance(value, str):
            # accelerate would run a script named there
            with contextlib.suppress(ValueError):  # reported by the option itself
                words = [word.rpartition("=")[2] for word in shell_words(value)]
                scripts = [word for word in words if "/" in word or "\\" in word or os.path.lexists(word)]
                yield from ((option.name, script) for script in scripts)


def _prompt_images(file: PromptFile) -> Iterator[tuple[str, str]]:
    """Yield the images that a file of prompts names, with their keys; none from one that training could not read
    either."""
    with contextlib.suppress(ValueError):
        for prompt in file.prompts(SamplePrompt()):
            yield from prompt.image_files


def _inside(dataset_config: Path) -> Iterator[tuple[str, str]]:
    """Yield the paths in a dataset file; nothing from a file that training could not read either."""
    try:
        waiting: list[Any] = [read_document(dataset_config)]
    except ValueError:
        return
    while waiting:
        match waiting.pop():
            case dict(table):
                yield from ((key, table[key]) for key in PATH_KEYS if isinstance(table.get(key), str))
                waiting += table.values()
            case list(items):
                waiting += items
