"""A run's files at each moment at which it could be killed: recorded once, restored as often as needed."""

import hashlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from sd_scripts.runs.events import EventLog

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
"""What Python's audit hook calls the operations that change a folder."""
FOLDER = ""


@dataclass(frozen=True)
class Moment:
    """Files of a killed process."""

    label: str
    """Its next or last operation."""
    tree: dict[str, str]
    """Path below the root -> hash of its content; FOLDER of a folder."""


class Recorder:
    """Records the files below `root` before each operation that changes it, and after each event of a run."""

    def __init__(self, root: Path, store: Path):
        self._root, self._store = str(root), store
        self._lock, self._busy = threading.RLock(), False
        self._known: dict[str, tuple[tuple[int, ...], str]] = {}
        self.moments: list[Moment] = []
        store.mkdir()

    def start(self) -> None:
        """Listen to this process until it ends."""
        sys.addaudithook(self._about_to)
        tell = EventLog.__call__

        def told(log: EventLog, kind: Any, **payload: Any) -> None:
            tell(log, kind, **payload)
            self.look(f"after {kind} {payload}")

        EventLog.__call__ = told  # type: ignore[method-assign]

    def _about_to(self, what: str, arguments: tuple[Any, ...]) -> None:
        changes = what in CHANGES or (what == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES)
        if changes and any(self._is_inside(path) for path in arguments[: 2 if what == "os.rename" else 1]):
            self.look(f"before {what} {arguments}")

    def _is_inside(self, argument: Any) -> bool:
        path = os.fsdecode(argument) if isinstance(argument, str | bytes | os.PathLike) else "/"  # else an open file
        return path.startswith(self._root) or not os.path.isabs(path)  # shutil.rmtree goes by folders it has open

    def look(self, label: str) -> None:
        with self._lock:
            if self._busy:  # our own files
                return
            self._busy = True
            tree = {entry.path[len(self._root) + 1 :]: self._content(entry) for entry in entries(self._root)}
            if not self.moments or self.moments[-1].tree != tree:
                self.moments.append(Moment(label.replace(self._root, ""), tree))
            self._busy = False

    def _content(self, entry: os.DirEntry[str]) -> str:
        if entry.is_dir():
            return FOLDER
        now = entry.stat()
        stamp = (now.st_ino, now.st_size, now.st_mtime_ns)
        if self._known.get(entry.path, ((), ""))[0] != stamp:
            self._known[entry.path] = stamp, keep(Path(entry.path).read_bytes(), self._store)
            os.utime(self._store / self._known[entry.path][1], ns=(now.st_mtime_ns, now.st_mtime_ns))
        return self._known[entry.path][1]

    def finish(self) -> None:
        self.look("the end")
        listed = [[moment.label, moment.tree] for moment in self.moments]
        (self._store / "moments.json").write_text(json.dumps(listed))


def entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """Everything below a folder; a folder before its contents."""
    with os.scandir(folder) as found:
        inside = sorted(found, key=lambda entry: entry.name)
    for entry in inside:
        yield entry
        if entry.is_dir():
            yield from entries(entry.path)


def keep(content: bytes, store: Path) -> str:
    """Return the name of this content in the store."""
    name = hashlib.sha256(content).hexdigest()
    if not (store / name).exists():
        (store / name).write_bytes(content)
    return name


def record(root: Path, store: Path, work: Callable[..., int], *arguments: Any) -> None:
    """Run `work` in this process, which is its own, and end it."""
    recorder = Recorder(root, store)
    recorder.start()
    status = work(*arguments)
    recorder.finish()
    sys.exit(status)


def recorded(store: Path) -> list[Moment]:
    """Return the moments of a recorded run, and between them those in which a file is half written."""
    seen = [Moment(label, tree) for label, tree in json.loads((store / "moments.json").read_text())]
    both = seen[:1]
    for before, after in pairwise(seen):
        both += [*_half_written(before, after, store), after]
    return both


def _half_written(before: Moment, after: Moment, store: Path) -> Iterator[Moment]:
    for path, name in after.tree.items():
        if name in (FOLDER, *before.tree.values()):  # nothing new, or under another name
            continue
        old = (store / before.tree[path]).read_bytes() if path in before.tree else b""
        new = (store / name).read_bytes()
        kept = len(old) if new.startswith(old) else 0
        half = keep(new[: kept + (len(new) - kept) // 2], store)
        yield Moment(f"within '{path}', {before.label}", {**before.tree, path: half})


def put_back(moment: Moment, root: Path, store: Path, put: Callable[[Path, Path], Any] = shutil.copy2) -> None:
    """Restore `root`; `put` may be os.link where files are only renamed and removed."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for path, name in moment.tree.items():
        (root / path).mkdir() if name == FOLDER else put(store / name, root / path)


def linked_tree(root: Path, store: Path) -> dict[str, str]:
    """Return the files below a root that was restored by links."""
    names = {entry.inode(): entry.name for entry in os.scandir(store)}
    return {
        entry.path[len(str(root)) + 1 :]: FOLDER if entry.is_dir() else names[entry.inode()]
        for entry in entries(str(root))
    }
