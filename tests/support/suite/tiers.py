"""The tier of each test: `fast` has functions and single layers; `run` whole models, training runs on miniatures,
servers and new Pythons; `deep` killed runs, several processes, the compiler, the page in a browser, and CUDA.

A test is `fast` unless its own mark, the first mark of its module's `pytestmark`, or its folder sets a different one.
"""

import re
from functools import cache
from pathlib import Path

TIERS = ("fast", "run", "deep")
FOLDERS = {"browser": "deep"}
"""Folder -> the tier of all that is in it."""
MARKED = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.(run|deep)\b", re.MULTILINE)
current = ""
"""The tier of the test that is running."""


@cache
def tier_of_file(path: Path) -> str:
    """Return the tier of a file or folder of tests by its place and text, without importing it."""
    for folder, tier in FOLDERS.items():
        if folder in path.parts:
            return tier
    marked = MARKED.search(path.read_text(encoding="utf-8")) if path.suffix == ".py" else None
    return marked[1] if marked else "fast"


def tier_of(path: Path, marks: list[str]) -> str:
    """Return the tier of a test in a file by its own marks, the closest first, else by its file."""
    if own := [mark for mark in marks if mark in TIERS]:
        return own[0]
    return "deep" if "inductor" in marks else tier_of_file(path)


def require_whole_runs() -> None:
    """Raise unless the running test may train."""
    assert current != "fast", "a fast test does not train: mark the test or its module `run`"
