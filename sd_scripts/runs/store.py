"""The list of past and queued runs: an SQLite table shared by all GUIs of this user."""

import functools
import json
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.rebuild import DESCRIBED, ended_below
from sd_scripts.runs.run_state import LIVING, State
from sd_scripts.runs.store_file import COLUMNS, StoreFile, insert, set_values

SLURM = "slurm"
"""Stands for the GPUs of a run that Slurm starts."""
NETWORK_FILE_SYSTEMS = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "afs", "glusterfs", "fuse.sshfs")
)


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A run's row in the list; the rest is in its folder."""

    id: int
    folder: Path
    name: str
    tab: str
    family: str
    gpus: str
    """The GPUs it needs, as `gpu_set` returns them, or SLURM."""
    state: State
    place: int | None
    """Position in the queue, from 1; None outside the queue."""
    created: float
    started: float | None
    ended: float | None
    step: int
    max_steps: int
    results: tuple[str, ...]
    """The models it saved."""
    error: str
    """Why it failed, or for what it waits, in one sentence."""
    owner: str = ""
    """The GUI that queued or started it, as a `process.process_key`."""
    process: str = ""
    """The process key of its own process; also in its folder."""
    note: str = ""
    """The user's note."""


def state_folder() -> Path:
    """Return the folder of this user's list of runs, by the system's convention."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "sd-scripts-studio"
    return Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local" / "state")) / "sd-scripts-studio"


def store_path() -> Path:
    """Return the path of the list of runs. Machines that share a home folder each have their own."""
    folder = state_folder()
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        mounts = ""
    shared = file_system(folder.resolve(), mounts) in NETWORK_FILE_SYSTEMS
    return folder / (f"runs-{platform.node()}.sqlite" if shared else "runs.sqlite")


@functools.lru_cache(maxsize=16)  # asked for each folder of a dataset
def file_system(path: Path, mounts: str) -> str:
    """Return the file system type of a path, from the contents of /proc/mounts; empty if unknown."""
    fields = [line.split() for line in mounts.splitlines()]
    kinds = {Path(place.replace("\\040", " ")): kind for _, place, kind, *_ in fields}
    return next((kinds[above] for above in (path, *path.parents) if above in kinds), "")


def gpus_overlap(one: str, other: str) -> bool:
    """Return whether two runs with these sets of GPUs conflict. Slurm shares out the GPUs of its jobs."""
    if SLURM in (one, other):
        return False
    if "cpu" in (one, other) or "all" in (one, other):
        return one == other or "cpu" not in (one, other)
    return not set(one.split(",")).isdisjoint(other.split(","))


class RunStore(StoreFile):
    """Rows by id. Raises ValueError with one sentence if the file cannot be read or written."""

    def __init__(self, path: Path | None = None):
        super().__init__(path or store_path())

    def add(
        self,
        folder: RunFolder | Path,
        *,
        name: str = "",
        tab: str = "",
        family: str = "",
        gpus: str = "all",
        state: State = "queued",
        owner: str = "",
    ) -> RunRow:
        """Add a row, at the end of the queue if queued. Raises ValueError for a folder that has a row."""
        path = (folder.path if isinstance(folder, RunFolder) else folder).absolute()
        columns = {
            "folder": str(path),
            "name": name or path.name,
            "tab": tab,
            "family": family,
            "gpus": gpus,
            "state": state,
            "owner": owner,
            "created": time.time(),
        }

        def append(db: sqlite3.Connection) -> RunRow:
            if db.execute("SELECT 1 FROM runs WHERE folder = ?", (str(path),)).fetchone():
                raise ValueError(f"{path} is already the folder of another run")
            made = insert(db, columns | {"place": _queue_length(db) + 1 if state == "queued" else None})
            return _rows(db, "WHERE id = ?", made)[0]

        row = self.write(append)
        self.index.record(row.id, folder=str(row.folder))
        return row

    def row(self, id: int) -> RunRow | None:
        if abs(id) >= 2**63:  # beyond SQLite's integers
            return None
        found = self.read(lambda db: _rows(db, "WHERE id = ?", id))
        return found[0] if found else None

    def rows(self, limit: int = 200) -> list[RunRow]:
        """Return the rows, newest first."""
        return self.read(lambda db: _rows(db, "ORDER BY id DESC LIMIT ?", limit))

    def newest_of_tabs(self) -> list[RunRow]:
        """Return the newest ended row of each tab."""
        ended = f"state NOT IN ({', '.join('?' * len(LIVING))}, 'queued')"
        which = f"WHERE id IN (SELECT MAX(id) FROM runs WHERE {ended} GROUP BY tab)"
        return self.read(lambda db: _rows(db, which, *LIVING))

    def queued(self) -> list[RunRow]:
        """Return the queued runs in starting order."""
        return self.read(_queued)

    def living(self) -> list[RunRow]:
        """Return the runs listed as running, oldest first."""
        return self.read(_living)

    def update(self, id: int, **columns: Any) -> None:
        """Update columns of a row, if it still exists."""
        self.write(lambda db: _update(db, "id = ?", (id,), columns))
        if described := {name: str(columns[name]) for name in DESCRIBED if name in columns}:
            self.index.record(id, **described)

    def claim(self, id: int, owner: str = "", passing: Collection[int] = ()) -> bool:
        """Claim a run for the caller to start, which sets it to `starting`; return whether that succeeded.

        It fails while the queue is paused, or a live run or one earlier in the queue needs one of its GPUs; earlier
        runs in `passing` are ignored.
        """

        def take(db: sqlite3.Connection) -> bool:
            queue = _queued(db)
            wanted = next((row for row in queue if row.id == id), None)
            if wanted is None or _setting(db, "paused"):
                return False
            earlier = [row for row in queue[: queue.index(wanted)] if row.id not in passing]
            if any(gpus_overlap(wanted.gpus, row.gpus) for row in [*_living(db), *earlier]):
                return False
            columns = {"state": "starting", "started": time.time(), "owner": owner, "error": ""}
            _update(db, "id = ?", (id,), columns)
            return True

        return self.write(take)

    def end(self, id: int, state: State, ended: float | None = None, **columns: Any) -> bool:
        """Record how a run ended; return whether this call did, as two GUIs may both see the end."""
        living = ", ".join(f"'{state}'" for state in LIVING)
        columns |= {"ended": ended or time.time(), "state": state}
        return self.write(lambda db: _update(db, f"id = ? AND state IN ({living})", (id,), columns))

    def move(self, id: int, to: int) -> None:
        """Move a queued run to position `to`, counted from 1 and clamped to the end."""

        def reorder(db: sqlite3.Connection) -> list[int]:
            order = [row.id for row in _queued(db) if row.id != id]
            order.insert(max(to - 1, 0), id)
            db.executemany(
                "UPDATE runs SET place = ? WHERE id = ? AND state = 'queued'",
                [(place, each) for place, each in enumerate(order, 1)],
            )
            return order

        self.index.record_queue(self.write(reorder))

    def restore(self, rows: Sequence[RunRow]) -> list[RunRow]:
        """Restore lost rows in one transaction, so that nobody sees queued runs without the live ones; return those
        that were lost."""

        def put_back(db: sqlite3.Connection) -> list[RunRow]:
            lost = [row for row in rows if not _rows(db, "WHERE id = ? OR folder = ?", row.id, str(row.folder))]
            for row in lost:
                insert(db, vars(row) | {"folder": str(row.folder)})
            _renumber_queue(db)
            return lost

        lost = self.write(put_back)
        for row in lost:
            self.index.record(row.id, folder=str(row.folder), name=row.name, note=row.note)
        return lost

    def find(self, folder: Path) -> int:
        """Add the finished runs below a folder that are not in the list; return how many."""

        def take_in(db: sqlite3.Connection) -> list[tuple[int, str]]:
            new = [columns for columns in ended_below(folder) if not _rows(db, "WHERE folder = ?", columns["folder"])]
            return [(insert(db, columns), columns["folder"]) for columns in new]

        added = self.write(take_in)
        for id, path in added:
            self.index.record(id, folder=path)
        return len(added)

    def forget(self, id: int, *, state: State | None = None) -> bool:
        """Delete a row, with `state` only if it is in that state; its folder stays. Return whether it existed."""

        def delete(db: sqlite3.Connection) -> bool:
            gone = db.execute("DELETE FROM runs WHERE id = ? AND (? IS NULL OR state = ?)", (id, state, state))
            _renumber_queue(db)
            return gone.rowcount == 1

        gone = self.write(delete)
        if gone:
            self.index.record(id, forgotten=True)
        return gone

    @property
    def version(self) -> int:
        """Increases with every change of a row or setting by any process."""
        return int(self.read(lambda db: _setting(db, "version")))

    @property
    def paused(self) -> bool:
        """Whether queued runs are held back."""
        return bool(self.read(lambda db: _setting(db, "paused")))

    @paused.setter
    def paused(self, pause: bool) -> None:
        self.pause(pause)

    @property
    def pause_reason(self) -> str:
        """Why the queue paused itself, in a sentence; empty if a user paused it."""
        return str(self.read(lambda db: _setting(db, "pause_reason")))

    def pause(self, paused: bool, reason: str = "") -> None:
        self._set(paused=int(paused), pause_reason=reason if paused else "")

    @property
    def after_failure(self) -> bool:
        """Whether the queue continues after a failed run; otherwise it pauses."""
        return bool(self.read(lambda db: _setting(db, "after_failure")))

    @after_failure.setter
    def after_failure(self, go_on: bool) -> None:
        self._set(after_failure=int(go_on))

    def _set(self, **values: int | str) -> None:
        self.write(lambda db: set_values(db, **values))
        self.index.record_settings(**values)


def _rows(db: sqlite3.Connection, which: str, *values: Any) -> list[RunRow]:
    return [
        _row(dict(zip(COLUMNS, each, strict=True)))
        for each in db.execute(f"SELECT {', '.join(COLUMNS)} FROM runs {which}", values)
    ]


def _row(columns: dict[str, Any]) -> RunRow:
    return RunRow(**columns | {"folder": Path(columns["folder"]), "results": tuple(json.loads(columns["results"]))})


def _queued(db: sqlite3.Connection) -> list[RunRow]:
    return _rows(db, "WHERE state = 'queued' ORDER BY place, id")


def _living(db: sqlite3.Connection) -> list[RunRow]:
    return _rows(db, f"WHERE state IN ({', '.join('?' * len(LIVING))}) ORDER BY id", *LIVING)


def _queue_length(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT count(*) FROM runs WHERE state = 'queued'").fetchone()[0])


def _setting(db: sqlite3.Connection, name: str) -> Any:
    return db.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()[0]


def _update(db: sqlite3.Connection, which: str, values: tuple[Any, ...], columns: dict[str, Any]) -> bool:
    assert columns.keys() <= set(COLUMNS), columns.keys()
    if "results" in columns:
        columns = columns | {"results": json.dumps([str(path) for path in columns["results"]])}
    if columns.get("state", "queued") != "queued":
        columns = columns | {"place": None}
    places = ", ".join(f"{name} = ?" for name in columns)
    done = db.execute(f"UPDATE runs SET {places} WHERE {which}", (*columns.values(), *values))
    if "state" in columns:
        _renumber_queue(db)
    return done.rowcount == 1


def _renumber_queue(db: sqlite3.Connection) -> None:
    """Renumber the queue 1, 2, 3, ..."""
    for place, row in enumerate(_queued(db), 1):
        if row.place != place:
            db.execute("UPDATE runs SET place = ? WHERE id = ?", (place, row.id))
