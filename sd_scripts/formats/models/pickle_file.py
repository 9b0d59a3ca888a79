"""Inspect a .ckpt or .pt file of torch.save by its pickle opcodes, without executing it and without torch."""

import pickletools
import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from sd_scripts.formats.documents import check_name
from sd_scripts.formats.models.safetensors_header import AGAIN

LARGEST_PICKLE = 64 * 2**20
"""Maximum bytes of the pickle without tensor data; a model's has one or two million."""
OLD_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""First bytes of files from torch.save before 1.6, where the tensors follow the pickle."""
HARMLESS = re.compile(r"(torch|collections|_codecs|builtins|__builtin__)(\..*)?")
"""Modules from which PyTorch's weights_only loading allows some names."""


@dataclass(frozen=True)
class PickleFile:
    """Facts that the opcodes reveal about a file."""

    texts: frozenset[str]
    """All its strings, which include the tensor names."""
    strange: tuple[str, ...]
    """Classes and functions that weights do not need."""


def read_pickle_file(path: Path) -> PickleFile:
    """Inspect a file. Raises ValueError, phrased to follow an option's name, unless torch.save wrote it completely."""
    check_name(path)
    try:
        if not path.is_file():
            raise ValueError(f"'{path}' is not a file" if path.exists() else f"file not found: '{path}'")
        if not path.stat().st_size:
            raise ValueError(f"'{path}' is empty; {AGAIN}")
        with path.open("rb") as file:
            start = file.read(len(OLD_MAGIC))
        return _scanned(path, _pickle_in_zip(path) if start[:2] == b"PK" else _old_pickle(path, start))
    except OSError as error:
        raise ValueError(f"'{path}' cannot be read: {error.strerror or error}") from None


def _pickle_in_zip(path: Path) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(each for each in archive.namelist() if each.endswith("data.pkl"))
            with archive.open(name) as member:
                return member.read(LARGEST_PICKLE + 1)
    except (zipfile.BadZipFile, StopIteration, RuntimeError, NotImplementedError, EOFError, ValueError, zlib.error):
        raise ValueError(f"'{path}' is truncated or not a weights file; {AGAIN}") from None


def _old_pickle(path: Path, start: bytes) -> bytes:
    """Return the last of the leading pickles: magic number, version, system info, and the table of tensors."""
    if start[:1] != b"\x80":
        raise ValueError(f"'{path}' is truncated or not a weights file; {AGAIN}")
    with path.open("rb") as file:
        head = file.read(LARGEST_PICKLE)
    if start != OLD_MAGIC:
        return head
    try:
        for _ in range(3):
            *_, (_, _, stop) = pickletools.genops(head)
            head = head[stop + 1 :]  # type: ignore[operator]
    except (ValueError, IndexError):
        raise ValueError(f"'{path}' is truncated or not a weights file; {AGAIN}") from None
    return head


def _scanned(path: Path, data: bytes) -> PickleFile:
    texts: set[str] = set()
    strange: set[str] = set()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "GLOBAL":
                module, _, name = str(argument).partition(" ")
                if not HARMLESS.fullmatch(module):
                    strange.add(f"{module}.{name}")
            elif isinstance(argument, str):
                texts.add(argument)
    except (ValueError, IndexError, OverflowError):
        raise ValueError(f"'{path}' is truncated or not a weights file; {AGAIN}") from None
    return PickleFile(frozenset(texts), tuple(sorted(strange)))
