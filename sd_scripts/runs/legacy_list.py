"""Read the list of runs of earlier versions: one folder per line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sd_scripts.formats.documents import parse_json
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.rebuild import row_of

NAME = "runs.jsonl"
KEPT = 200


def runs(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the newest runs of a legacy list as rows, oldest first; none if there is no such list."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()[-KEPT:]
    except (OSError, UnicodeDecodeError):
        return
    for path in dict.fromkeys(_paths(lines)):
        if path.is_dir():
            yield row_of(RunFolder(path))


def _paths(lines: list[str]) -> Iterator[Path]:
    for line in lines:
        try:
            yield Path(parse_json(line))
        except (ValueError, TypeError):  # cut by a full disk
            continue
