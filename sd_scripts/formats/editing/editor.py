"""Change captions and masks: an edit is whole or not at all, refused if somebody else changed one of them, and can be
undone."""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from sd_scripts.formats.atomic_files import PART
from sd_scripts.formats.disk import NotWritten
from sd_scripts.formats.editing.journal import Action, Author, Change, Journal, Move
from sd_scripts.formats.editing.moving import carry_out, problem_of, put_back
from sd_scripts.formats.editing.places import (
    MISSING,
    Place,
    content_of,
    files_with,
    read_places,
    text_of,
    version_of,
)
from sd_scripts.formats.words import counted, some

NO_COPIES: Mapping[Path, Path] = MappingProxyType({})
SYNCED_EACH = 200
"""Files that are flushed to the disk one by one; of more, all of the disk is flushed together."""


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """A caption that was changed by somebody else since it was read."""

    place: Place
    theirs: str
    """The text that it has now."""
    yours: str
    """The text that was to be written."""


class ChangedOutside(ValueError):
    """Raised instead of writing over captions that were changed in the meantime; nothing was written."""

    def __init__(self, conflicts: Sequence[Conflict]):
        names = some([conflict.place.name for conflict in conflicts])
        what = counted(len(conflicts), conflicts[0].place.noun)
        super().__init__(f"{what} changed outside this page: {names}; nothing was written")
        self.conflicts = tuple(conflicts)


@dataclass(frozen=True, kw_only=True)
class TextEdit:
    """A new text for a caption."""

    place: Place
    text: str
    seen: str | None = None
    """The version that its author saw; None: whatever is there."""


@dataclass(frozen=True, kw_only=True)
class FileEdit:
    """A new content for a mask; None removes it."""

    place: Place
    content: bytes | None
    seen: str
    """The version that its author saw."""


class Editor:
    """Changes datasets and remembers how to undo it. All methods are safe in several threads and processes; they raise
    ValueError and NotWritten, one sentence each."""

    def __init__(self, journal: Journal):
        self.journal = journal

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock, with everything put back that a killed process had begun."""
        with self.journal.lock():
            for action in self.journal.interrupted():
                self._put_back(action)
            yield

    def write(self, scope: str, label: str, edits: Iterable[TextEdit], author: Author = "hand") -> Action | None:
        """Write texts and return the action; None if all captions have these texts already.

        Raises ChangedOutside if a caption differs from the version seen.
        """
        by_place = {edit.place: edit for edit in edits}
        with self.alone():
            current = read_places(by_place)
            changes, conflicts = [], []
            for place, content in current.items():
                edit = by_place[place]
                if edit.seen is not None and edit.seen != version_of(content):
                    conflicts.append(Conflict(place=place, theirs=_shown(place, content), yours=edit.text))
                elif content is None or text_of(place, content) != edit.text:
                    after = content_of(place, edit.text, content)
                    changes.append(Change(place=place, before=content, after=after))
            if conflicts:
                raise ChangedOutside(conflicts)
            return self._carry_out(scope, label, changes, author)

    def write_files(
        self, scope: str, label: str, edits: Iterable[FileEdit], moves: Sequence[Move] = (), author: Author = "hand"
    ) -> Action | None:
        """Write or remove masks, and give files different paths, as one action; None if nothing changes.

        Raises ChangedOutside if a mask differs from the version seen, and ValueError if a file exists at a new path.
        """
        by_place = {edit.place: edit for edit in edits}
        with self.alone():
            if problem := problem_of(moves):
                raise ValueError(problem)
            current = read_places(by_place)
            conflicts = [
                Conflict(place=place, theirs=_shown(place, content), yours=_shown(place, by_place[place].content))
                for place, content in current.items()
                if by_place[place].seen != version_of(content)
            ]
            if conflicts:
                raise ChangedOutside(conflicts)
            changes = [
                Change(place=place, before=content, after=by_place[place].content)
                for place, content in current.items()
                if content != by_place[place].content
            ]
            return self._carry_out(scope, label, changes, author, moves)

    def restore(self, scope: str, point: int, name: str) -> Action | None:
        """Put back the captions and masks of a restore point, as an action that can be undone. Captions of images that
        are gone are left out."""
        with self.alone():
            contents = {
                place: content
                for place, content in self.journal.point_contents(scope, point).items()
                if place.words == "mask" or (place.file.parent.is_dir() and (place.key is None or place.file.is_file()))
            }
            current = read_places(contents)
            changes = [
                Change(place=place, before=current[place], after=content)
                for place, content in contents.items()
                if content != current[place]
            ]
            return self._carry_out(scope, f"Restore '{name}'", changes, "hand")

    def undo(self, scope: str) -> Action:
        """Undo the newest action in a scope. Raises ChangedOutside, and ValueError if there is none."""
        return self._turn(scope, undo=True)

    def redo(self, scope: str) -> Action:
        """Repeat the action that was undone last."""
        return self._turn(scope, undo=False)

    def next_actions(self, scope: str) -> tuple[Action | None, Action | None]:
        """Return the actions that undo and redo would turn."""
        done = self.journal.actions(scope, "done")
        undone = self.journal.actions(scope, "undone")
        return (done[0] if done else None, undone[-1] if undone else None)

    def _turn(self, scope: str, *, undo: bool) -> Action:
        with self.alone():
            action = self.next_actions(scope)[0 if undo else 1]
            if action is None:
                raise ValueError(f"There is nothing to {'undo' if undo else 'redo'} in this dataset")
            action = self.journal.with_contents(action)
            moves = [*reversed([_reversed(m) for m in action.moves])] if undo else [*action.moves]
            if problem := problem_of(moves):
                raise ValueError(problem)
            changes = [_turned(change) if undo else change for change in action.changes]
            current = read_places([change.place for change in changes])
            conflicts = [
                Conflict(place=c.place, theirs=_shown(c.place, current[c.place]), yours=_shown(c.place, c.after))
                for c in changes
                if current[c.place] != c.before
            ]
            if conflicts:
                raise ChangedOutside(conflicts)
            turning = self.journal.begin(action.scope, action.label, changes=changes, moves=moves, author="hand")
            self._write_or_put_back(turning)
            self.journal.finish(action, "undone" if undo else "done")
            self.journal.forget(turning)
            return action

    def move(
        self, scope: str, label: str, moves: Sequence[Move], copies: Mapping[Path, Path] = NO_COPIES
    ) -> Action | None:
        """Give files different paths, and copy captions that others share, source -> copy: all or none. Raises
        ValueError if a target exists."""
        if not moves:
            return None
        with self.alone():
            if problem := problem_of([*moves, *(Move(source=one, target=copy) for one, copy in copies.items())]):
                raise ValueError(problem)
            contents = read_places(map(Place, copies))
            changes = [
                Change(place=Place(copies[place.file]), before=None, after=content)
                for place, content in contents.items()
            ]
            return self._carry_out(scope, label, changes, "hand", moves)

    def _carry_out(
        self, scope: str, label: str, changes: Sequence[Change], author: Author, moves: Sequence[Move] = ()
    ) -> Action | None:
        if not changes and not moves:
            return None
        action = self.journal.begin(scope, label, changes=changes, moves=moves, author=author)
        self._write_or_put_back(action)
        self.journal.finish(action)
        return action

    def _write_or_put_back(self, action: Action) -> None:
        try:
            write_changes(action.changes)
            carry_out(action.moves)
        except (OSError, ValueError) as error:
            self._put_back(action)
            if isinstance(error, OSError) and not isinstance(error, NotWritten):
                raise NotWritten(error.filename or action.scope, error) from error
            raise

    def _put_back(self, action: Action) -> None:
        """Undo the part of an interrupted action that was carried out; captions that were changed since are kept."""
        put_back(action.moves)
        for change in action.changes:
            _remove_part(change.place.file, action.process)
        current = read_places([change.place for change in action.changes])
        write_changes([_turned(change) for change in action.changes if current[change.place] == change.after])
        self.journal.forget(action)


def write_changes(changes: Sequence[Change]) -> None:
    """Write all captions and masks, or none if there is no room: each is written under a hidden name, and only then are
    they renamed. Raises OSError and ValueError."""
    parts: list[tuple[Path, Path]] = []
    removed = []
    for folder in {change.place.file.parent for change in changes if change.place.words == "mask"}:
        folder.mkdir(parents=True, exist_ok=True)
    files = dict(files_with({change.place: change.after for change in changes}))
    try:
        for file, content in files.items():
            if content is None:
                removed.append(file)
            else:
                part = _part_of(file, os.getpid())
                parts.append((part, file))
                _write(part, content, like=file, sync=len(files) <= SYNCED_EACH)
        if len(files) > SYNCED_EACH and hasattr(os, "sync"):
            os.sync()
        for part, file in parts:
            os.replace(part, file)
        for file in removed:
            file.unlink(missing_ok=True)
    finally:
        for part, _ in parts:
            with contextlib.suppress(OSError):  # it was renamed, or never created
                part.unlink()


def _write(part: Path, content: bytes, *, like: Path, sync: bool) -> None:
    with part.open("wb") as stream:
        stream.write(content)
        stream.flush()
        if sync:
            os.fsync(stream.fileno())
    with contextlib.suppress(OSError):  # a new file, or a file system without modes
        part.chmod(stat.S_IMODE(like.stat().st_mode))


def _part_of(file: Path, process: int) -> Path:
    return file.with_name(f".{file.name[:200]}.{process}.{PART}")


def _remove_part(file: Path, process: int) -> None:
    with contextlib.suppress(OSError):
        _part_of(file, process).unlink()


def _turned(change: Change) -> Change:
    return replace(change, before=change.after, after=change.before)


def _reversed(move: Move) -> Move:
    return replace(move, source=move.target, target=move.source)


def _shown(place: Place, content: bytes | None) -> str:
    try:
        return text_of(place, content)
    except ValueError as error:
        return str(error)


__all__ = ["MISSING", "ChangedOutside", "Conflict", "Editor", "FileEdit", "TextEdit", "write_changes"]
