"""What was changed in datasets: every edit with the texts before and after, who wrote a caption, and restore points.

A SQLite file in the studio's own folder. An edit is recorded before the first file is written and marked as done after
the last, so that one which was cut off is put back by whoever comes next, and can be undone after a restart. Datasets
are changed under a lock, which the system takes back from a process that is killed.
"""

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sd_scripts.formats.disk import NotWritten
from sd_scripts.formats.editing.places import Place, version_of
from sd_scripts.formats.private import private_file, private_folder

Author = Literal["hand", "tagger", "model", "outside"]
State = Literal["writing", "done", "undone"]
KEPT_ACTIONS = 500
KEPT_BYTES = 2**30
"""Of masks before and after edits; older edits are forgotten."""
BUSY_SECONDS = 20.0
SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE actions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, scope TEXT NOT NULL, label TEXT NOT NULL, state TEXT NOT NULL,
    made REAL NOT NULL, process INTEGER NOT NULL, author TEXT NOT NULL DEFAULT 'hand'
);
CREATE TABLE texts (
    action INTEGER NOT NULL REFERENCES actions ON DELETE CASCADE, file TEXT NOT NULL, key TEXT, words TEXT NOT NULL,
    before BLOB, after BLOB, writer TEXT NOT NULL DEFAULT 'outside'
);
CREATE TABLE moves (
    action INTEGER NOT NULL REFERENCES actions ON DELETE CASCADE, number INTEGER NOT NULL, source TEXT NOT NULL,
    target TEXT NOT NULL
);
CREATE TABLE authors (
    file TEXT NOT NULL, key TEXT NOT NULL DEFAULT '', words TEXT NOT NULL, version TEXT NOT NULL, author TEXT NOT NULL,
    made REAL NOT NULL, PRIMARY KEY (file, key, words)
);
CREATE TABLE points (id INTEGER PRIMARY KEY AUTOINCREMENT, scope TEXT NOT NULL, name TEXT NOT NULL, made REAL NOT NULL);
CREATE TABLE point_texts (
    point INTEGER NOT NULL REFERENCES points ON DELETE CASCADE, file TEXT NOT NULL, key TEXT, words TEXT NOT NULL,
    content BLOB
);
CREATE INDEX texts_of ON texts (action);
CREATE INDEX moves_of ON moves (action);
CREATE INDEX point_texts_of ON point_texts (point);
"""
OLDER_MASKS = """
SELECT action FROM (
    SELECT action, SUM(size) OVER (ORDER BY action DESC) AS newer FROM (
        SELECT action, SUM(COALESCE(length(before), 0) + COALESCE(length(after), 0)) AS size
        FROM texts WHERE words = 'mask' GROUP BY action
    )
) WHERE newer > ?
"""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A caption or mask before and after an edit; None: it does not exist."""

    place: Place
    before: bytes | None
    after: bytes | None
    writer: Author = "outside"
    """Who wrote the caption before."""


@dataclass(frozen=True, kw_only=True)
class Move:
    """A file or folder that gets a different path."""

    source: Path
    target: Path


@dataclass(frozen=True, kw_only=True)
class Action:
    """An edit of captions, or of the files of a dataset."""

    id: int
    scope: str
    """The folder or file that was open."""
    label: str
    state: State
    made: float
    process: int
    author: Author
    changes: tuple[Change, ...] = ()
    moves: tuple[Move, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RestorePoint:
    id: int
    name: str
    made: float
    captions: int
    masks: int


class Journal:
    """All methods are safe in several threads and processes. They raise NotWritten if the disk is full, and ValueError,
    one sentence, if the file cannot be used."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._path = folder / "edits.sqlite"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Let nobody else change a dataset in the meantime."""
        private_folder(self._folder)
        file = private_file(self._folder / "edits.lock")
        lock = sqlite3.connect(file, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            lock.execute("BEGIN EXCLUSIVE")
            yield
        except sqlite3.OperationalError as error:
            raise ValueError("Another change of a dataset is still being written; try again in a moment") from error
        finally:
            lock.close()

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            private_folder(self._folder)
            private_file(self._path)
            db = sqlite3.connect(self._path, timeout=BUSY_SECONDS)
        except (OSError, sqlite3.Error) as error:
            raise NotWritten(self._path, error) from error
        try:
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("PRAGMA journal_mode = WAL")  # fewer waits for the disk, which others may keep busy
            db.execute("PRAGMA synchronous = NORMAL")  # a loss of power can lose the last undo, never a caption
            db.row_factory = sqlite3.Row
            self._create(db)
            with db:
                yield db
        except sqlite3.OperationalError as error:
            reason = OSError(28, "No space left on device") if "full" in str(error) else error
            raise NotWritten(self._path, reason) from error
        except sqlite3.DatabaseError as error:
            raise ValueError(self._set_aside(error)) from error
        finally:
            db.close()

    def _create(self, db: sqlite3.Connection) -> None:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == SCHEMA_VERSION:
            return
        if version:
            raise ValueError(f"'{self._path}' was written by a newer version; update, or remove the file")
        db.execute("BEGIN IMMEDIATE")
        if not db.execute("PRAGMA user_version").fetchone()[0]:  # no other process made it in the meantime
            for statement in SCHEMA.strip().removesuffix(";").split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.commit()

    def _set_aside(self, error: Exception) -> str:
        """Rename a damaged file, so that edits work again; return the sentence about it."""
        aside = self._path.with_suffix(f".damaged-{int(time.time())}.sqlite")
        with contextlib.suppress(OSError):
            os.replace(self._path, aside)
        for ending in ("-wal", "-shm"):
            self._path.with_name(self._path.name + ending).unlink(missing_ok=True)
        return f"'{self._path}' is damaged ({error}) and was renamed to '{aside.name}'; earlier edits cannot be undone"

    # Actions

    def begin(
        self, scope: str, label: str, *, changes: Sequence[Change] = (), moves: Sequence[Move] = (), author: Author
    ) -> Action:
        """Record an action before it is carried out."""
        made, process = time.time(), os.getpid()
        writers = self.authors({change.place: change.before for change in changes})
        changes = [replace(change, writer=writers.get(change.place, "outside")) for change in changes]
        with self._open() as db:
            id = db.execute(
                "INSERT INTO actions (scope, label, state, made, process, author) VALUES (?, ?, 'writing', ?, ?, ?)",
                (scope, label, made, process, author),
            ).lastrowid
            db.executemany(
                "INSERT INTO texts VALUES (?, ?, ?, ?, ?, ?, ?)",
                ((id, str(c.place.file), c.place.key, c.place.words, c.before, c.after, c.writer) for c in changes),
            )
            db.executemany(
                "INSERT INTO moves VALUES (?, ?, ?, ?)",
                ((id, n, str(m.source), str(m.target)) for n, m in enumerate(moves)),
            )
        return Action(
            id=id or 0,
            scope=scope,
            label=label,
            state="writing",
            made=made,
            process=process,
            author=author,
            changes=tuple(changes),
            moves=tuple(moves),
        )

    def finish(self, action: Action, state: State = "done") -> None:
        """Mark an action as done or undone, and remember who wrote the captions. After a new action, earlier ones that
        were undone can no longer be repeated."""
        undone = state == "undone"
        with self._open() as db:
            if action.state == "writing":
                redone = [row for row in db.execute("SELECT * FROM actions WHERE state = 'undone'")]
                gone = [(row["id"],) for row in redone if _overlap(row["scope"], action.scope)]
                db.executemany("DELETE FROM actions WHERE id = ?", gone)
            db.execute("UPDATE actions SET state = ? WHERE id = ?", (state, action.id))
            for change in action.changes:
                written = (change.before, change.writer) if undone else (change.after, action.author)
                _remember(db, change.place, *written)
            for move in action.moves:
                _follow(db, *((move.target, move.source) if undone else (move.source, move.target)))
            db.execute(
                "DELETE FROM actions WHERE id NOT IN (SELECT id FROM actions ORDER BY id DESC LIMIT ?)", (KEPT_ACTIONS,)
            )
            if any(change.place.words == "mask" for change in action.changes):
                db.execute(f"DELETE FROM actions WHERE id != ? AND id IN ({OLDER_MASKS})", (action.id, KEPT_BYTES))

    def forget(self, action: Action) -> None:
        """Remove an action that was not carried out."""
        with self._open() as db:
            db.execute("DELETE FROM actions WHERE id = ?", (action.id,))

    def forget_moves_into(self, folder: Path) -> None:
        """Remove the actions that moved files into a folder, which was deleted: they can no longer be undone."""
        within = f"{folder}{os.sep}"
        moved = "SELECT action FROM moves WHERE substr(target, 1, ?) = ? OR substr(source, 1, ?) = ?"
        with self._open() as db:
            db.execute(f"DELETE FROM actions WHERE id IN ({moved})", (len(within), within) * 2)

    def actions(self, scope: str, *states: State) -> list[Action]:
        """Return the actions in a scope without their contents, newest first."""
        with self._open() as db:
            rows = db.execute("SELECT * FROM actions ORDER BY id DESC").fetchall()
        return [_action(row) for row in rows if row["state"] in states and _overlap(row["scope"], scope)]

    def interrupted(self) -> list[Action]:
        """Return the actions that were cut off, newest first."""
        with self._open() as db:
            rows = db.execute("SELECT * FROM actions WHERE state = 'writing' ORDER BY id DESC").fetchall()
        return [self.with_contents(_action(row)) for row in rows]

    def with_contents(self, action: Action) -> Action:
        with self._open() as db:
            texts = db.execute("SELECT * FROM texts WHERE action = ?", (action.id,)).fetchall()
            moves = db.execute("SELECT * FROM moves WHERE action = ? ORDER BY number", (action.id,)).fetchall()
        return Action(
            **{name: getattr(action, name) for name in ("id", "scope", "label", "state", "made", "process", "author")},
            changes=tuple(
                Change(place=_place(row), **{name: row[name] for name in ("before", "after", "writer")})
                for row in texts
            ),
            moves=tuple(Move(source=Path(row["source"]), target=Path(row["target"])) for row in moves),
        )

    # Authors

    def authors(self, contents: Mapping[Place, bytes | None]) -> dict[Place, Author]:
        """Return who wrote each caption; "outside" if it was not written here, or has been changed since. A caption
        that does not exist has no author."""
        with self._open() as db:
            rows: dict[Place, tuple[str, Author]] = {}
            for files in _batches(sorted({str(place.file) for place in contents})):
                marks = ",".join("?" * len(files))
                for row in db.execute(f"SELECT * FROM authors WHERE file IN ({marks})", files):
                    rows[_place(row)] = row["version"], row["author"]
        known: dict[Place, Author] = {}
        for place, content in contents.items():
            if content:
                version, author = rows.get(place, ("", "outside"))
                known[place] = author if version == version_of(content) else "outside"
        return known

    # Restore points

    def add_point(self, scope: str, name: str, contents: Mapping[Place, bytes | None]) -> int:
        """Remember captions and masks as they are; return the number of the restore point."""
        with self._open() as db:
            statement = "INSERT INTO points (scope, name, made) VALUES (?, ?, ?)"
            id = db.execute(statement, (scope, name, time.time())).lastrowid or 0
            db.executemany(
                "INSERT INTO point_texts VALUES (?, ?, ?, ?, ?)",
                ((id, str(p.file), p.key, p.words, content) for p, content in contents.items()),
            )
        return id

    def points(self, scope: str) -> list[RestorePoint]:
        """Return the restore points of a scope, newest first."""
        texts = "SELECT count(*) FROM point_texts WHERE point = points.id AND"
        counts = f"({texts} words != 'mask') AS captions, ({texts} words = 'mask' AND content IS NOT NULL) AS masks"
        with self._open() as db:
            rows = db.execute(f"SELECT *, {counts} FROM points WHERE scope = ? ORDER BY id DESC", (scope,)).fetchall()
        return [
            RestorePoint(**{name: row[name] for name in ("id", "name", "made", "captions", "masks")}) for row in rows
        ]

    def point_contents(self, scope: str, id: int) -> dict[Place, bytes | None]:
        """Return the captions and masks of a restore point. Raises ValueError if it no longer exists."""
        with self._open() as db:
            if not db.execute("SELECT 1 FROM points WHERE id = ? AND scope = ?", (id, scope)).fetchone():
                raise ValueError("This restore point no longer exists")
            rows = db.execute("SELECT * FROM point_texts WHERE point = ?", (id,)).fetchall()
        return {_place(row): row["content"] for row in rows}

    def remove_point(self, scope: str, id: int) -> None:
        with self._open() as db:
            db.execute("DELETE FROM points WHERE id = ? AND scope = ?", (id, scope))


def _remember(db: sqlite3.Connection, place: Place, content: bytes | None, author: str) -> None:
    name = str(place.file), place.key or "", place.words
    if content is None:
        db.execute("DELETE FROM authors WHERE file = ? AND key = ? AND words = ?", name)
    else:
        row = (*name, version_of(content), author, time.time())
        db.execute("INSERT OR REPLACE INTO authors VALUES (?, ?, ?, ?, ?, ?)", row)


def _follow(db: sqlite3.Connection, source: Path, target: Path) -> None:
    """Note the new path of a file, or of a folder and the files in it, in all that is remembered of it."""
    old, new = str(source), str(target)
    within = f"{old}{os.sep}"
    for table in ("texts", "authors", "point_texts"):
        db.execute(
            f"UPDATE OR REPLACE {table} SET file = ? || substr(file, ?) WHERE file = ? OR substr(file, 1, ?) = ?",
            (new, len(old) + 1, old, len(within), within),
        )


def _action(row: Any) -> Action:
    return Action(**{name: row[name] for name in ("id", "scope", "label", "state", "made", "process", "author")})


def _place(row: Any) -> Place:
    return Place(Path(row["file"]), row["key"] or None, row["words"])


def _overlap(one: str, other: str) -> bool:
    """Return whether two scopes are the same, or one contains the other."""
    shorter, longer = sorted((one, other), key=len)
    return longer == shorter or longer.startswith(f"{shorter.rstrip(os.sep)}{os.sep}")


def _batches(values: Sequence[str], size: int = 500) -> Iterable[Sequence[str]]:
    return (values[start : start + size] for start in range(0, len(values), size))
