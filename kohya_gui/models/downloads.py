"""The downloads of this user: one at a time, in their order; paused, resumed, and found again by a later GUI."""

import json
import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from kohya_gui.models.download import Paused, bytes_here, fetch_all, remove_partial
from kohya_gui.models.remote import TOKEN_PAGES, NoAccess, RemoteFile
from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.disk import sentence_of
from sd_scripts.formats.private import private_folder
from sd_scripts.runs import process
from sd_scripts.runs.folder import read_json

WAITING, DOWNLOADING, CHECKING, PAUSED, FAILED, DONE = "waiting", "downloading", "checking", "paused", "failed", "done"
RUNNING = (WAITING, DOWNLOADING, CHECKING)
MOST = 100
SPEED_OVER = 10.0
"""Seconds over which the speed is measured."""
logger = logging.getLogger("sd_scripts")


@dataclass
class Download:
    """A file on its way."""

    file: RemoteFile
    target: Path
    state: str = WAITING
    error: str = ""
    """Why it failed, one sentence."""
    needs_token: bool = False
    page: str = ""
    """Where a token is made or terms are accepted, if it failed for lack of either."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    bytes: int = 0
    """Received or, while it is checked, read."""
    marks: deque[tuple[float, int]] = field(default_factory=deque)
    """Recent times and bytes at them."""

    @property
    def speed(self) -> float:
        """Bytes per second; 0 if it is not known yet."""
        if len(self.marks) < 2:
            return 0.0
        (before, few), (_, many) = self.marks[0], self.marks[-1]
        now = time.monotonic()  # not the last mark's time: a connection that stalls becomes slower
        return max(0.0, (many - few) / (now - before)) if now > before else 0.0

    def begin(self, state: str) -> None:
        self.state = state
        self.error = self.page = ""
        self.needs_token = False
        self.marks.clear()

    def mark(self, bytes_: int) -> None:
        self.bytes = bytes_
        now = time.monotonic()
        self.marks.append((now, bytes_))
        while now - self.marks[0][0] > SPEED_OVER and len(self.marks) > 2:
            self.marks.popleft()


class Downloads:
    """Downloads files in a thread. All methods are safe in several threads."""

    def __init__(self, folder: Path, may_write: Callable[[Path], bool] = lambda path: True) -> None:
        """Continue what an earlier GUI left in `folder` when it ended, as far as this one may write there."""
        self._folder = folder
        self._may_write = may_write
        self._lock = threading.RLock()
        self._tokens: dict[str, str] = {}
        """By site. Asked for once, and never written anywhere."""
        self._thread: threading.Thread | None = None
        self._owner = process.process_key()
        self._all = self._found()
        self._serve()

    def add(self, file: RemoteFile, target: Path) -> str:
        """Download a file to `target`, after those that run and wait; return its id. Raises ValueError."""
        with self._lock:
            if target.exists():
                raise ValueError(f"'{target}' is on this machine already")
            if self._is_being_fetched(target):
                raise ValueError(f"'{target}' is being downloaded already")
            for former in [each for each in self._all.values() if each.target == target]:
                self._forget(former)  # the partial file, if it is of the same file, is continued
            ended = [each for each in self._all.values() if each.state == DONE]
            for former in ended[: max(0, len(self._all) - MOST + 1)]:
                self._forget(former)
            if len(self._all) >= MOST:
                raise ValueError(f"There are {MOST} downloads already; wait for one to end, or remove one")
            download = Download(file, target)
            download.bytes = bytes_here(file, target)
            self._all[download.id] = download
            try:
                self._save(download)
            except OSError as error:
                del self._all[download.id]
                raise ValueError(f"The download could not be saved: {sentence_of(error)}") from error
        self._serve()
        return download.id

    def token(self, site: str) -> str | None:
        return self._tokens.get(site)

    def use_token(self, site: str, token: str) -> None:
        """Use a token for this and later downloads until the GUI ends. Raises ValueError."""
        token = token.strip()
        if not token.isascii() or not token.isprintable() or len(token) > 500 or " " in token:
            raise ValueError("This is not a token; copy it again from the site's settings")
        if site in TOKEN_PAGES and token:
            self._tokens[site] = token

    def pause(self, id: object) -> None:
        with self._lock:
            download = self._of(id)
            if download.state in RUNNING:
                download.begin(PAUSED)
                self._save(download)

    def resume(self, id: object) -> None:
        with self._lock:
            download = self._of(id)
            if download.state in (PAUSED, FAILED):
                download.begin(WAITING)
                self._save(download)
        self._serve()

    def remove(self, id: object) -> None:
        """Forget a download, with its unfinished file."""
        with self._lock:
            download = self._of(id)
            unfinished = download.state != DONE
            download.begin(PAUSED)  # the thread lets go of it
            self._forget(download)
        if unfinished:
            try:
                remove_partial(download.file, download.target)
            except OSError as error:
                raise ValueError(sentence_of(error)) from error

    def described(self) -> list[dict[str, Any]]:
        with self._lock:
            return [_described(each) for each in self._all.values()]

    def wait(self, seconds: float) -> bool:
        """Wait until nothing is downloaded any more; return whether that is so."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()

    def _of(self, id: object) -> Download:
        download = self._all.get(id) if isinstance(id, str) else None
        if download is None:
            raise ValueError("This download is no longer in the list")
        return download

    def _serve(self) -> None:
        with self._lock:
            waiting = any(each.state == WAITING for each in self._all.values())
            if waiting and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._fetch_all, name="downloads", daemon=True)
                self._thread.start()

    def _fetch_all(self) -> None:
        while True:
            with self._lock:
                following = next((each for each in self._all.values() if each.state == WAITING), None)
                if following is None:
                    self._thread = None
                    return
                following.begin(DOWNLOADING)
                self._save_if_possible(following)
            self._fetch(following)

    def _fetch(self, download: Download) -> None:
        def received(bytes_: int) -> None:
            progress(DOWNLOADING, bytes_)

        def checked(bytes_: int) -> None:
            progress(CHECKING, bytes_)

        def progress(state: str, bytes_: int) -> None:
            with self._lock:
                if download.state not in (DOWNLOADING, CHECKING):
                    raise Paused
                if download.state != state:
                    download.begin(state)
                download.mark(bytes_)

        end, error, page, needs_token = DONE, "", "", False
        try:
            fetch_all(download.file, download.target, self._tokens.get(download.file.site), received, checked)
        except Paused:
            return
        except NoAccess as refusal:
            end, error, needs_token = FAILED, str(refusal), refusal.needs_token
            page = refusal.page
        except ValueError as problem:
            end, error = FAILED, str(problem)
        except Exception as fault:  # the others must be downloaded
            logger.exception("A download failed")
            end, error = FAILED, f"The download failed: {sentence_of(fault)}"
        with self._lock:
            if end != DONE and download.state not in (DOWNLOADING, CHECKING):
                return  # paused or removed in the meantime
            download.begin(end)
            download.error, download.page, download.needs_token = error, page, needs_token
            if download.id in self._all:
                self._save_if_possible(download)

    def _file(self, id: str) -> Path:
        return self._folder / f"{id}.json"

    def _save(self, download: Download) -> None:
        private_folder(self._folder)
        record = {
            "owner": self._owner,
            "file": asdict(download.file),
            "target": str(download.target),
            "state": download.state,
        }
        write_whole(self._file(download.id), json.dumps(record))

    def _save_if_possible(self, download: Download) -> None:
        try:
            self._save(download)
        except OSError as error:
            logger.warning(f"The list of downloads could not be saved: {sentence_of(error)}")

    def _forget(self, download: Download) -> None:
        self._all.pop(download.id, None)
        self._file(download.id).unlink(missing_ok=True)

    def _records(self) -> dict[str, Mapping[str, Any]]:
        """Return the records of this and other GUIs, oldest first."""
        try:
            paths = sorted(self._folder.glob("*.json"), key=os.path.getmtime)
        except OSError:
            return {}
        found = {path.stem: read_json(path) for path in paths}
        return {id: each for id, each in found.items() if isinstance(each, dict)}

    def _is_being_fetched(self, target: Path) -> bool:
        """Return whether this GUI or another one downloads to this place."""
        if any(each.target == target and each.state in RUNNING for each in self._all.values()):
            return True
        return any(
            each.get("target") == str(target) and each.get("state") in RUNNING and _is_anothers(each, self._owner)
            for each in self._records().values()
        )

    def _found(self) -> dict[str, Download]:
        found = {}
        for id, record in self._records().items():
            if _is_anothers(record, self._owner):
                continue
            download = _download_of(id, record)
            if download and not self._may_write(download.target):
                continue
            if download is None or download.state == DONE:
                self._file(id).unlink(missing_ok=True)
                continue
            found[id] = download
            self._save_if_possible(download)  # it is this GUI's from now on
        return found


def _is_anothers(record: Mapping[str, Any], owner: str) -> bool:
    other = record.get("owner")
    return isinstance(other, str) and other != owner and process.is_alive(other)


def _download_of(id: str, record: Mapping[str, Any]) -> Download | None:
    """Return the download of a record; None if it is damaged."""
    try:
        file = _file_of(record["file"])
        download = Download(file, Path(record["target"]), id=id)
        state = str(record["state"])
        download.state = WAITING if state in RUNNING else state if state in (PAUSED, DONE) else PAUSED
        download.bytes = bytes_here(file, download.target)
    except (AttributeError, KeyError, OSError, TypeError, ValueError):
        return None
    return download


def _file_of(record: Mapping[str, Any]) -> RemoteFile:
    names = {each.name for each in fields(RemoteFile)}
    known = {key: value for key, value in record.items() if key in names}
    return RemoteFile(**{**known, "parts": tuple(map(_file_of, record.get("parts", ())))})


def _described(download: Download) -> dict[str, Any]:
    total, speed = download.file.bytes, download.speed
    left = (total - download.bytes) / speed if total and speed else None
    return {
        "id": download.id,
        "name": download.target.name,
        "target": str(download.target),
        "folder": str(download.target.parent),
        "site": download.file.site,
        "source": download.file.page,
        "state": download.state,
        "bytes": download.bytes,
        "total": total,
        "speed": speed if download.state in RUNNING else 0,
        "seconds": left if download.state in RUNNING else None,
        "error": download.error,
        "needs_token": download.needs_token,
        "page": download.page,
        "token_page": TOKEN_PAGES[download.file.site],
    }
