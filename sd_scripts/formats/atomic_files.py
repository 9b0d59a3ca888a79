"""Files that appear whole or not at all: written beside, flushed, renamed."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a text file that appears whole or not at all. Raises OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
