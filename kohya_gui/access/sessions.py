"""Login sessions and the credential that opens them; one file per session, so that they survive a restart."""

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

from sd_scripts.formats.private import private_file, private_folder

LIFETIME = 30 * 24 * 3600
"""Seconds after which a session ends, here and in the browser."""
CHECKED_AGAIN = 5.0
"""Seconds for which a session check is cached: a page sends several requests a second."""


@dataclass(frozen=True)
class Credential:
    """The credential that opens the page: a token, or a username with a password."""

    kind: Literal["token", "password"]
    secret: str
    username: str = ""

    def matches(self, secret: str, username: str = "") -> bool:
        """Return whether this opens the page, in constant time."""
        return hmac.compare_digest(_digest(f"{self.username}\0{self.secret}"), _digest(f"{username}\0{secret}"))


class Sessions:
    """The sessions of one credential. Its hash is part of the file names, so a changed password ends all sessions."""

    def __init__(self, folder: Path, credential: Credential, now: Callable[[], float] = time.time) -> None:
        self.credential = credential
        self._folder = folder
        self._now = now
        self._checked: dict[str, float] = {}
        """Session id -> time until which it is valid without another check."""
        # browsers send cookies to every port of a host, so tunnels to two machines would share them
        self.name = f"studio-session-{hashlib.sha256(f'{platform.node()} {folder}'.encode()).hexdigest()[:8]}"

    def begin(self) -> str:
        """Return the id of a new session."""
        private_folder(self._folder)
        self._delete_old()
        id = secrets.token_urlsafe(32)
        private_file(self._file(id)).touch()
        return id

    def is_open(self, id: str) -> bool:
        """Return whether a session with this id is open."""
        if self._checked.get(id, 0.0) > self._now():
            return True
        if not id or not self._is_young(self._file(id)):
            self._checked.pop(id, None)
            return False
        self._checked = {other: until for other, until in self._checked.items() if until > self._now()}
        self._checked[id] = self._now() + CHECKED_AGAIN
        return True

    def end(self, id: str) -> None:
        """End a session."""
        self._checked.pop(id, None)
        with suppress(OSError):
            self._file(id).unlink()

    def _file(self, id: str) -> Path:
        credential = f"{self.credential.kind}\0{self.credential.username}\0{self.credential.secret}"
        return self._folder / hmac.new(_digest(credential), id.encode(), "sha256").hexdigest()

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
