"""Where files may lie that the page reads and writes: everywhere at one's own desk, in named folders for others."""

import errno
import ntpath
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from sd_scripts.formats.documents import read_document
from sd_scripts.options.metadata_file import read_metadata
from sd_scripts.options.model_file import is_hub_id
from sd_scripts.options.spec import Option
from sd_scripts.options.words import shell_words

NO_PATHS = {"resume": ("latest",)}
"""Words that an option takes in the place of a path."""
HUB_NAMES = ("pretrained_model_name_or_path", "vae")
"""Options that take the id of a model on the Hugging Face Hub too."""
PATH_KEYS = ("image_dir", "metadata_file", "conditioning_data_dir")
"""Keys of a dataset_config whose values are paths."""
NAMES_IN = {"output_name": "output_dir", "log_prefix": "logging_dir", "log_tracker_name": "logging_dir"}
"""Options that name something in the folder of another: a / leads elsewhere there too."""

NO_PATH = {
    errno.ENAMETOOLONG: "is longer than a path can be, or a name in it longer than 255 bytes; shorten it",
    errno.ELOOP: "is a link that leads back to itself; name the folder or file itself",
}
"""What is wrong with a path that nothing can ever lie at."""


@dataclass(frozen=True)
class AllowedPaths:
    """The folders and files that the page may touch, with all that lies below them."""

    allowed: tuple[Path, ...] | None = None
    """None: everything."""

    @classmethod
    def within(cls, folders: Iterable[Path]) -> "AllowedPaths":
        """Only these. The root of a disk is left out: a program that is started there would allow everything."""
        real = (_real(folder.expanduser()) for folder in folders)
        return cls(tuple(dict.fromkeys(folder for folder in real if folder != folder.parent)))

    def check(self, option: str, path: str | os.PathLike[str]) -> Path:
        """The path, absolute and with ~ read. ValueError, naming the option, where it or a link leads outside, and for
        what no path can be.

        Nothing is said of whether something lies there.
        """
        text = os.fspath(path).strip()
        if "\x00" in text:
            raise ValueError(f"{option}: a path cannot hold the character 0")
        try:
            os.fsencode(text)
        except UnicodeEncodeError:
            raise ValueError(f"{option}: {text!a} holds characters that no path can hold") from None
        place = Path(os.path.expanduser(text)).absolute()
        if not self.holds(place):
            raise ValueError(
                f"{option}: '{text}' is outside of the allowed folders; name its folder with --allowed_path "
                "when you start the GUI"
            )
        try:
            os.stat(place)
        except OSError as error:
            if why := NO_PATH.get(error.errno or 0):
                raise ValueError(f"{option}: '{_short(text)}' {why}") from None
        return place

    def holds(self, path: Path) -> bool:
        """Whether a path lies in an allowed folder, and so does what it links to."""
        if self.allowed is None:
            return True
        where = Path(os.path.realpath(path.parent)) / path.name  # a link may be written over, not only followed
        return all(any(p.is_relative_to(folder) for folder in self.allowed) for p in (where, _real(path)))

    def problems(self, values: Mapping[str, Any], options: Iterable[Option]) -> list[str]:
        """What is wrong with the paths in the values of these options, a sentence each."""
        if self.allowed is None:
            return []
        return [why for name, path in _paths(values, options) if (why := self.problem(name, path))]

    def problem(self, name: str, path: str) -> str | None:
        """Why the option of this name cannot have this path; None where it can, and for what is no path there."""
        if self.allowed is None:
            return None
        if path in NO_PATHS.get(name, ()) or (name in HUB_NAMES and is_hub_id(path) and not os.path.lexists(path)):
            return None
        try:
            place = self.check(name, path)
            if name == "dataset_config":
                for key, inner in _inside(place):
                    self.check(f"dataset_config: {key}", inner)
                    if key == "metadata_file":
                        self._check_keys("dataset_config: metadata_file", Path(inner))
            if name == "in_json":
                self._check_keys(name, place)
        except ValueError as error:
            return str(error)
        return None

    def _check_keys(self, name: str, metadata: Path) -> None:
        """ValueError where a metadata file has the path of an image outside among its keys."""
        try:
            keys = list(read_metadata(metadata, name))
        except (ValueError, RecursionError):  # training could not read it either
            return
        for key in keys:
            if PurePath(key).anchor or ntpath.splitdrive(key)[0]:
                self.check(name, key)
            elif ".." in re.split(r"[/\\]", key):
                raise ValueError(f"{name}: the image '{key}' leads out of its folder; write its whole path there")


EVERYWHERE = AllowedPaths()


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:60]}...{text[-20:]}"


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _paths(values: Mapping[str, Any], options: Iterable[Option]) -> Iterator[tuple[str, str]]:
    for option in options:
        value = values.get(option.name)
        if option.path:
            each = value if isinstance(value, list) else [value]
            yield from ((option.name, path) for path in each if isinstance(path, str) and path.strip())
        elif option.name in NAMES_IN and isinstance(value, str):
            yield option.name, os.path.join(values.get(NAMES_IN[option.name]) or ".", value)
        elif option.name == "extra_accelerate_launch_args" and isinstance(value, str):
            # accelerate would run a script that is named there
            words = [word.rpartition("=")[2] for word in _words(value)]
            yield from ((option.name, word) for word in words if "/" in word or "\\" in word or os.path.lexists(word))


def _words(text: str) -> list[str]:
    try:
        return shell_words(text)
    except ValueError:  # told by the option itself
        return []


def _inside(dataset_config: Path) -> Iterator[tuple[str, str]]:
    """The paths that a dataset file names; nothing of a file that training could not read either."""
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
