"""Conventions in file and folder names of images, shared by training and the page."""

import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

Value = TypeVar("Value")
NOT_IN_NAMES = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f\ud800-\udfff]+')
LONGEST_NAME = 120
"""Bytes of a folder's name that is made of a text; file systems take 255."""
MASKS = "masks"
"""Folder of masks next to the folders of images, where none is named."""


class ByName(Generic[Value]):
    """Values by name, which are also found by the name in another Unicode normalization: macOS, archives and network
    drives write `é` as one letter or as two, and people see no difference."""

    def __init__(self, values: Mapping[str, Value]):
        self._values = values

    def get(self, name: str) -> Value | None:
        """Return the value of exactly this name, else of the same name in a different normalization, else None."""
        found = self._values.get(name)
        return self._normalized.get(normalized(name)) if found is None else found

    @cached_property
    def _normalized(self) -> dict[str, Value]:
        return {normalized(name): value for name, value in self._values.items()}

    def first(self, names: Iterable[str]) -> Value | None:
        """Return the value of the first name that has one."""
        for name in names:
            if (found := self.get(name)) is not None:
                return found
        return None


def normalized(name: str) -> str:
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def existing_folder(path: Path) -> Path:
    """Return a folder under the Unicode normalization in which it exists; unchanged if it exists in none."""
    if str(path).isascii() or path.is_dir() or path == path.parent:
        return path
    parent = existing_folder(path.parent)
    try:
        names = os.listdir(parent)
    except OSError:  # it is reported where it is read
        return path
    return parent / (ByName({name: name for name in names}).get(path.name) or path.name)


def numbered(name: str) -> tuple[int, str] | None:
    """Parse "10_cat" into (10, "cat"), repeats and class tokens. None for a name of a different form."""
    number, _, concept = name.partition("_")
    return (int(number), concept) if number.isdecimal() else None


def dotted(extension: str) -> str:
    """Return ".txt" for "txt" and for ".txt", with blanks around it or without."""
    extension = extension.strip()
    return extension if extension.startswith(".") else f".{extension}"


def is_ending(extension: str) -> bool:
    """Whether a file name can have this extension."""
    return bool(extension.strip()) and not any(letter in '/\\:*?"<>|' or ord(letter) < 32 for letter in extension)


def as_folder_name(text: str) -> str:
    """Return a text as part of a folder's name: unchanged, if a folder can have this name on every system."""
    name = NOT_IN_NAMES.sub(" ", normalized(text)).encode()[:LONGEST_NAME].decode(errors="ignore")
    return " ".join(name.split()).rstrip(". ") or "class"
