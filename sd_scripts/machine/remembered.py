"""Tables of what can be found out again: SQLite files next to the list of runs.

Nothing depends on them: missing rows are determined again, and a damaged or read-only file is treated as an empty one.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sd_scripts.formats.private import private_file, private_folder
from sd_scripts.runs.store import store_path

AT_ONCE = 500
"""Rows looked up by one statement."""
BUSY_SECONDS = 5.0


class RememberedTables:
    """The tables of one file. Its name is the list of runs' with `name` for runs."""

    def __init__(self, name: str, columns: Mapping[str, str], largest: int) -> None:
        """`columns`: of each table, in SQL; `largest`: rows that a table keeps, the newest ones."""
        self._name = name
        self._columns = columns
        self.largest = largest

    @property
    def path(self) -> Path:
        path = store_path()
        return path.with_name(path.name.replace("runs", self._name, 1))

    def rows(self, table: str, key: str, wanted: Sequence[object], columns: str) -> list[tuple[Any, ...]]:
        """Return these columns of the rows whose key is wanted."""
        rows: list[tuple[Any, ...]] = []

        def read(db: sqlite3.Connection) -> None:
            for start in range(0, len(wanted), AT_ONCE):
                chunk = wanted[start : start + AT_ONCE]
                places = ",".join("?" * len(chunk))
                rows.extend(db.execute(f"SELECT {columns} FROM {table} WHERE {key} IN ({places})", chunk))

        if wanted and self.path.is_file():
            self._with_file(read)
        return rows

    def store(self, table: str, rows: Sequence[tuple[object, ...]]) -> bool:
        """Add or replace rows, and drop the oldest of too many; return whether that worked, as it does not on a full
        disk."""

        def write(db: sqlite3.Connection) -> None:
            for name, columns in self._columns.items():
                db.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
            with db:
                db.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)
                db.execute(f"DELETE FROM {table} WHERE rowid <= (SELECT max(rowid) FROM {table}) - ?", (self.largest,))

        return not rows or self._with_file(write)

    def remove(self) -> None:
        """Remove the file, which is created again."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _with_file(self, work: Callable[[sqlite3.Connection], None]) -> bool:
        """Run `work` on the file and return whether that worked; remove a damaged file."""
        path = self.path
        try:
            private_file(private_folder(path.parent) / path.name)  # images and their names are private
            with contextlib.closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as db:
                work(db)
                return True
        except (sqlite3.OperationalError, OSError):
            return False  # busy, on a full disk, or without the table
        except sqlite3.DatabaseError:
            self.remove()
            return False
