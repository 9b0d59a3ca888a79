"""The images that an unfinished job has captioned, by which the same job continues after a stop or a kill."""

import contextlib
import time
from pathlib import Path

from sd_scripts.formats.private import private_folder
from sd_scripts.runs.store import state_folder

KEPT_SECONDS = 30 * 24 * 3600
"""After these, an unfinished job starts from scratch."""


class DoneList:
    """A file of the studio's own folder with the path of an image in each line, removed once the job is finished."""

    def __init__(self, key: str, *, keep: bool = True):
        folder = private_folder(state_folder() / "unfinished-captions")
        _remove_old(folder)
        self._file = folder / f"{key}.txt" if keep else None
        self._done: set[str] = set()
        if self._file and self._file.is_file():
            self._done = set(self._file.read_text(encoding="utf-8", errors="surrogateescape").split("\n"))

    def __contains__(self, image: Path) -> bool:
        return str(image.absolute()) in self._done

    def add(self, image: Path) -> None:
        """Note that an image is done. On a full disk it is done again after a resume."""
        if self._file is None:
            return
        text = f"{image.absolute()}\n"
        with contextlib.suppress(OSError), self._file.open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)

    def finish(self) -> None:
        if self._file:
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)


def _remove_old(folder: Path) -> None:
    for file in folder.glob("*.txt"):
        with contextlib.suppress(OSError):
            if file.stat().st_mtime < time.time() - KEPT_SECONDS:
                file.unlink()
