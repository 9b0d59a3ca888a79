"""Change the metadata of a .safetensors file: a new header before the same bytes, without torch."""

import json
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

from sd_scripts.formats.atomic_files import atomic_file
from sd_scripts.formats.disk import saving
from sd_scripts.formats.models.safetensors_header import read_header

PIECE = 1 << 24
"""Bytes that are copied at a time."""


def write_with_metadata(
    path: Path, save_to: Path, metadata: Mapping[str, str], progress: Callable[[int, int], None]
) -> None:
    """Write the file with other metadata, whole or not at all; `save_to` may be the file itself. `progress` is called
    with the megabytes that are done and all.

    Raises ValueError, phrased to follow an option's name, if `path` is not a valid file; OSError if it cannot be
    written.
    """
    read_header(path)
    with path.open("rb") as source:
        (length,) = struct.unpack("<Q", source.read(8))
        header = json.loads(source.read(length))
        header.pop("__metadata__", None)
        header = {"__metadata__": dict(metadata), **header}
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
        text += b" " * (-len(text) % 8)
        size = path.stat().st_size
        left = size - 8 - length
        with saving(save_to), atomic_file(save_to) as part:
            with part.open("wb") as target:
                target.write(struct.pack("<Q", len(text)) + text)
                while piece := source.read(PIECE):
                    target.write(piece)
                    left -= len(piece)
                    progress((size - left) >> 20, size >> 20)
            shutil.copymode(path, part)


def edited(metadata: Mapping[str, str], changes: Mapping[str, str], removed: list[str]) -> dict[str, str]:
    """Return metadata with changes; a removed name with a * at its end removes all that begin so."""
    starts = tuple(name[:-1] for name in removed if name.endswith("*"))
    gone = {key for key in metadata if key in removed or (starts and key.startswith(starts))}
    return {key: text for key, text in metadata.items() if key not in gone} | dict(changes)
