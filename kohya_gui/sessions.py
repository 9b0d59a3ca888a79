"""Who is logged in: what opens the page, and the sessions that it opened; one file each, so a restart keeps them."""

import hashlib
import hmac
import os
import platform
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sd_scripts.runs.private import private_file, private_folder

LIFETIME = 30 * 24 * 3600
"""Seconds after which a session ends, here and in the browser."""
CHECKED_AGAIN = 5.0
"""Seconds for which a session that was found is believed: a page asks several times a second."""


@dataclass(frozen=True)
class Credential:
    """What opens the page: a token, or a name with a password."""

    kind: Literal["token", "password"]
    secret: str
    username: str = ""

    def fits(self, secret: str, username: str = "") -> bool:
        """Whether this opens the page, told in the same time for every wrong answer."""
        same = [hmac.compare_digest(_digest(mine), _digest(other)) for mine, other in
                ((self.secret, secret), (self.username, username))]  # fmt: skip
        return all(same)


class Sessions:
    """The sessions of one credential. A file's name holds both hashed, so that another password ends all of them."""

    def __init__(self, folder: Path, credential: Credential, now: Callable[[], float] = time.time) -> None:
        self.credential = credential
        self._folder, self._now = folder, now
        self._found: dict[str, float] = {}
        """Until when a session is believed."""
        # browsers send the cookies of one port to all others, and those of one machine's tunnel to another's
        self.name = f"studio-session-{hashlib.sha256(f'{platform.node()} {folder}'.encode()).hexdigest()[:8]}"

    def begin(self) -> str:
        """Return the id of a new session."""
        private_folder(self._folder)
        self._delete_old()
        id = secrets.token_urlsafe(32)
        private_file(self._file(id)).touch()
        return id

    def is_open(self, id: str) -> bool:
        """Whether a session of this id has begun and not ended."""
        if self._found.get(id, 0.0) > self._now():
            return True
        if not id or not self._is_young(self._file(id)):
            self._found.pop(id, None)
            return False
        self._found = {known: until for known, until in self._found.items() if until > self._now()}
        self._found[id] = self._now() + CHECKED_AGAIN
        return True

    def end(self, id: str) -> None:
        """The session is worth nothing any more."""
        self._found.pop(id, None)
        with suppress(OSError):
            self._file(id).unlink()

    def _file(self, id: str) -> Path:
        mine = f"{self.credential.kind}\0{self.credential.username}\0{self.credential.secret}"
        return self._folder / hmac.new(_digest(mine), id.encode(), "sha256").hexdigest()

    def _is_young(self, file: Path) -> bool:
        try:
            return self._now() - file.stat().st_mtime < LIFETIME
        except OSError:
            return False

    def _delete_old(self) -> None:
        with suppress(OSError):
            for entry in os.scandir(self._folder):
                if not self._is_young(Path(entry.path)):
                    os.unlink(entry.path)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
