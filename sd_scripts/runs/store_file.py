"""The SQLite file behind the list of runs: schema, transactions, and recovery from damage."""

import contextlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from sd_scripts.formats.private import private_file, private_folder
from sd_scripts.runs.rebuild import FolderIndex

logger = logging.getLogger("sd_scripts")

OURS, SCHEMA = 0x5D5C7D11, 1
"""application_id and user_version, which distinguish our file from other SQLite files."""
BUSY_SECONDS = 10.0
COUNT = "UPDATE settings SET value = value + 1 WHERE name = 'version'"
SCHEMA_STATEMENTS = (
    """CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    folder TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL DEFAULT '',
    tab TEXT NOT NULL DEFAULT '',
    family TEXT NOT NULL DEFAULT '',
    gpus TEXT NOT NULL DEFAULT 'all',
    state TEXT NOT NULL DEFAULT 'queued',
    place INTEGER,
    created REAL NOT NULL,
    started REAL,
    ended REAL,
    step INTEGER NOT NULL DEFAULT 0,
    max_steps INTEGER NOT NULL DEFAULT 0,
    results TEXT NOT NULL DEFAULT '[]',
    error TEXT NOT NULL DEFAULT '',
    owner TEXT NOT NULL DEFAULT '',
    process TEXT NOT NULL DEFAULT '',
    note TEXT NOT NULL DEFAULT ''
)""",
    "CREATE INDEX by_state ON runs (state)",
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value)",
    f"CREATE TRIGGER added AFTER INSERT ON runs BEGIN {COUNT}; END",
    f"CREATE TRIGGER changed AFTER UPDATE ON runs BEGIN {COUNT}; END",
    f"CREATE TRIGGER gone AFTER DELETE ON runs BEGIN {COUNT}; END",
    "CREATE TRIGGER set_otherwise AFTER UPDATE ON settings WHEN NEW.name != 'version' AND NEW.value IS NOT OLD.value "
    f"BEGIN {COUNT}; END",
)
COLUMNS = (
    *("id", "folder", "name", "tab", "family", "gpus", "state", "place", "created", "started", "ended", "step"),
    *("max_steps", "results", "error", "owner", "process", "note"),
)
ADDED = {"note": "TEXT NOT NULL DEFAULT ''"}
"""Columns that earlier versions lack and ignore."""

T = TypeVar("T")


class NewerList(Exception):
    """Raised for a list written by a newer version, which we must not modify."""


class StoreFile:
    """Reopens the file for each operation, so that threads, processes and a replaced file all work together.

    Raises ValueError with one sentence if it cannot be read or written.
    """

    def __init__(self, path: Path):
        self.path = path
        self.notice = ""
        """A sentence for the user if the file was damaged or deleted, else empty."""
        self.index = FolderIndex(path.with_suffix(".folders.jsonl"))
        self._recovering = threading.Lock()
        self._anchor: sqlite3.Connection | None = None
        """Kept open but unused: it makes SQLite keep its -wal and -shm files, which need room on the disk."""
        self._anchoring = threading.Lock()
        with contextlib.suppress(OSError):  # reported when the file is opened
            private_file(private_folder(path.parent) / path.name)  # names and folders are private
        self.read(lambda db: None)  # create or recover it now
        self.index.begin(self.read(lambda db: db.execute("SELECT id, folder FROM runs ORDER BY id").fetchall()))
        self._drop_anchor()

    def _drop_anchor(self) -> None:
        anchor = sqlite3.connect(self.path, timeout=BUSY_SECONDS, check_same_thread=False)
        anchor.execute("SELECT count(*) FROM settings").fetchone()
        self._replace_anchor(anchor)

    def _replace_anchor(self, anchor: sqlite3.Connection | None) -> None:
        """Close the anchor, and keep a new one. Only one thread may close a connection: two crash the process."""
        with self._anchoring:
            before, self._anchor = self._anchor, anchor
            if before:
                before.close()

    def _notify(self, notice: str) -> None:
        self.notice = notice
        logger.warning(notice)

    def close(self) -> None:
        """Close the anchor; the file can still be read and written."""
        self._replace_anchor(None)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on the file; recover a damaged file once and retry."""
        try:
            with self._open() as db:
                return work(db)
        except sqlite3.DatabaseError as error:
            self._recover(error)
        try:
            with self._open() as db:
                return work(db)
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{self.path}: the list of runs cannot be used ({error})") from error

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a transaction, while nobody else writes."""

        def whole(db: sqlite3.Connection) -> T:
            with _transaction(db):
                return work(db)

        return self.read(whole)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            if not self.path.exists():
                private_file(private_folder(self.path.parent) / self.path.name)
            db = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise ValueError(f"{self.path}: the list of runs cannot be opened ({error})") from error
        with contextlib.closing(db):
            try:
                db.execute("PRAGMA synchronous = NORMAL")
                if _is_laid_out(db):
                    _add_columns(db)
                else:
                    self._lay_out(db)
                    if self._anchor:  # it is open on a deleted file
                        self._drop_anchor()
                yield db
            except NewerList:
                raise ValueError(
                    f"{self.path}: a newer version of this program wrote the list of runs, which this one cannot read: "
                    "update this one (git pull), or start it with a different state folder "
                    f"({'LOCALAPPDATA' if os.name == 'nt' else 'XDG_STATE_HOME'}=FOLDER)"
                ) from None
            except sqlite3.OperationalError as error:
                why = "is the disk full, or may the folder not be written?"
                raise ValueError(f"{self.path}: the list of runs cannot be used ({error}): {why}") from error

    def _lay_out(self, db: sqlite3.Connection) -> None:
        """Create the schema, and restore the runs from their folders if there was a list before."""
        with contextlib.suppress(sqlite3.OperationalError):  # another process is creating it right now
            db.execute("PRAGMA journal_mode = WAL")
        with _transaction(db):
            if _is_laid_out(db):
                return
            for statement in SCHEMA_STATEMENTS:  # executescript() would commit the transaction
                db.execute(statement)
            had_one = self._anchor is not None or self.index.path.exists()
            rows = list(self.index.rows()) if had_one else []
            for columns in rows:
                insert(db, columns)
            if had_one and not self._recovering.locked():  # _recover reports more
                self._notify(
                    f"The list of runs {self.path} was deleted; {len(rows)} runs were restored into a new list"
                )
            # a rebuilt list continues with a higher version than the old one had
            settings = {"version": time.time_ns() // 10**6, "paused": 0, "pause_reason": "", "after_failure": 1}
            if had_one:
                settings |= self.index.remembered().settings
            if not settings["paused"] and any(columns["state"] == "queued" for columns in rows):
                settings |= {"paused": 1, "pause_reason": self.notice}  # the user decides whether they still start
            db.executemany("INSERT INTO settings VALUES (?, ?)", settings.items())
            db.execute(f"PRAGMA application_id = {OURS}")
            db.execute(f"PRAGMA user_version = {SCHEMA}")

    def _recover(self, error: sqlite3.DatabaseError) -> None:
        """Move a damaged or foreign file aside, and create a new one with the rows that are still readable."""
        if type(error) is not sqlite3.DatabaseError:  # subclasses are our errors, not the file's
            raise error
        with self._recovering:
            if self._is_intact():  # another thread was faster
                return
            self.close()
            aside = self._move_aside(error)
            kept = _salvage(aside)
            with self._open() as db, _transaction(db):
                for columns in kept:  # these rows have more than the folders
                    db.execute("DELETE FROM runs WHERE id = ? OR folder = ?", (columns["id"], columns["folder"]))
                    insert(db, columns)
                states = [state for (state,) in db.execute("SELECT state FROM runs")]
                self._notify(
                    f"The list of runs could not be read ({error}) and was moved to {aside}; "
                    f"{len(states)} of its runs were restored into a new list"
                )
                if "queued" in states:  # it may have been paused for a reason
                    set_values(db, paused=1, pause_reason=self.notice)
            self._drop_anchor()

    def _move_aside(self, why: Exception) -> Path:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        names = (f"{self.path.stem}-damaged-{stamp}{more}{self.path.suffix}" for more in ("", "-2", "-3", "-4"))
        aside = next(path for name in names if not (path := self.path.with_name(name)).exists())
        try:
            os.replace(self.path, aside)
            for more in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self.path}{more}", f"{aside}{more}")
        except OSError as error:
            raise ValueError(
                f"{self.path}: the list of runs is damaged ({why}) and cannot be moved aside ({error.strerror})"
            ) from error
        return aside

    def _is_intact(self) -> bool:
        try:
            with self._open() as db:
                return bool(db.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
        except sqlite3.DatabaseError:
            return False


def insert(db: sqlite3.Connection, columns: dict[str, Any]) -> int:
    """Insert a row; return its id."""
    columns = columns | {"results": json.dumps(columns.get("results", ()))}
    slots = ", ".join("?" * len(columns))
    made = db.execute(f"INSERT INTO runs ({', '.join(columns)}) VALUES ({slots})", list(columns.values()))
    assert made.lastrowid
    return made.lastrowid


def set_values(db: sqlite3.Connection, **values: int | str) -> None:
    """Change settings of the list."""
    db.executemany("UPDATE settings SET value = ? WHERE name = ?", [(value, name) for name, value in values.items()])


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run the block as one exclusive write transaction."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # some errors roll back automatically
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _add_columns(db: sqlite3.Connection) -> None:
    there = _columns(db)
    for name, kind in ADDED.items():
        if name not in there:
            with contextlib.suppress(sqlite3.OperationalError):  # another process was faster
                db.execute(f"ALTER TABLE runs ADD COLUMN {name} {kind}")


def _columns(db: sqlite3.Connection) -> list[str]:
    return [str(row[1]) for row in db.execute("PRAGMA table_info(runs)")]


def _is_laid_out(db: sqlite3.Connection) -> bool:
    """Return False for an empty file; raise DatabaseError for one that is not ours."""
    application, version = (db.execute(f"PRAGMA {mark}").fetchone()[0] for mark in ("application_id", "user_version"))
    if (application, version) == (OURS, SCHEMA):
        return True
    if application == OURS and version > SCHEMA:
        raise NewerList
    if (application, version) != (0, 0) or db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise sqlite3.DatabaseError("not a list of runs, or one of a different version")
    return False


def _salvage(file: Path) -> list[dict[str, Any]]:
    """Return the readable rows of a damaged list."""
    rows: list[dict[str, Any]] = []
    with contextlib.suppress(sqlite3.Error, ValueError, TypeError), contextlib.closing(sqlite3.connect(file)) as db:
        there = [name for name in COLUMNS if name in _columns(db)]
        for each in db.execute(f"SELECT {', '.join(there)} FROM runs ORDER BY id"):
            columns = dict(zip(there, each, strict=True))
            columns["results"] = json.loads(columns["results"])  # keep only readable rows
            rows.append(columns)
    return rows
