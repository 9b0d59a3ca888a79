"""Download one file: into a hidden file next to its place, from which it can be resumed, and which is renamed once its
checksum is right."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from kohya_gui.models.address import HUB
from kohya_gui.models.remote import SECONDS, RemoteFile, asking, headers_for
from sd_scripts.formats.disk import FULL, NotWritten, errno_of, format_bytes, free_bytes

READ_AT_ONCE = 1 << 24
WHOLE, ALL_HERE = 200, 416
"""Statuses of an answer to a request for a range."""
SPARE = 100_000_000
"""Bytes that are left free on the disk."""


class Paused(Exception):
    """Raised by a function that is called with the progress, to stop for now."""


def partial(file: RemoteFile, target: Path) -> Path:
    """Return the hidden file of an unfinished download. A different file of the same name has a different one."""
    which = file.sha256 or hashlib.sha256(file.url.encode()).hexdigest()
    return target.with_name(f".{target.name}.{which[:12]}.download")


def bytes_here(file: RemoteFile, target: Path) -> int:
    """Return the bytes of a download that are here."""
    part = partial(file, target)
    if not file.parts:
        return part.stat().st_size if part.is_file() else 0
    return sum(each.stat().st_size for each in part.rglob("*") if each.is_file())


def remove_partial(file: RemoteFile, target: Path) -> None:
    """Remove what is here of an unfinished download. Raises OSError."""
    part = partial(file, target)
    if file.parts and part.is_dir():
        shutil.rmtree(part)
    else:
        part.unlink(missing_ok=True)


def fetch_all(
    file: RemoteFile,
    target: Path,
    token: str | None,
    received: Callable[[int], None],
    checked: Callable[[int], None],
) -> None:
    """Download a file, or a folder part by part into a hidden one; otherwise as `fetch`."""
    if not file.parts:
        fetch(file, target, token, received, checked)
        return
    hidden = partial(file, target)
    done = 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _require_space(target.parent, (file.bytes or 0) - bytes_here(file, target))
        for part in file.parts:
            place = hidden / part.name
            received(done)  # it may have been paused or removed
            if not place.is_file():  # it gets its name once its checksum is right
                fetch(part, place, token, _after(done, received), _after(done, checked))
            done += part.bytes or 0
        if target.exists():
            raise ValueError(_exists(target))
        os.replace(hidden, target)
    except OSError as error:
        raise ValueError(str(NotWritten(target, error))) from error


def fetch(
    file: RemoteFile,
    target: Path,
    token: str | None,
    received: Callable[[int], None],
    checked: Callable[[int], None],
) -> None:
    """Download a file to `target`, from where an earlier attempt was interrupted.

    `received` and `checked` are called with the bytes that are here, and that were read for the checksum; each may
    raise Paused. Raises ValueError, one sentence; NoAccess.
    """
    part = partial(file, target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        have = part.stat().st_size if part.is_file() else 0
        if file.bytes is not None and have > file.bytes:
            part.unlink()
            have = 0
        _require_space(target.parent, (file.bytes or 0) - have)
        with part.open("ab") as opened, asking(file.site, file.page):
            _receive(file, opened, have, token, received)
            opened.flush()
            os.fsync(opened.fileno())
        _check(file, part, checked)
        if target.exists():
            raise ValueError(_exists(target))
        os.replace(part, target)
    except OSError as error:
        if errno_of(error) in FULL:
            raise ValueError(f"{NotWritten(target, error)}, then resume the download") from error
        raise ValueError(str(NotWritten(target, error))) from error


def _after(done: int, report: Callable[[int], None]) -> Callable[[int], None]:
    """Return a report of the bytes of the whole for the bytes of a part."""
    return lambda bytes_: report(done + bytes_)


def _require_space(folder: Path, missing: int) -> None:
    free = free_bytes(folder)
    if free is not None and missing + SPARE > free:
        raise ValueError(
            f"'{folder}' has {format_bytes(free)} free, and {format_bytes(missing)} are missing: free some space, or "
            "choose a different folder"
        )


def _exists(target: Path) -> str:
    return f"'{target}' exists already; remove or rename one of the two"


def _receive(file: RemoteFile, opened: BinaryIO, have: int, token: str | None, received: Callable[[int], None]) -> None:
    """Append the rest to an open file that has the first `have` bytes. huggingface_hub's own http_get would
    lose the last 10 MB with each connection that is cut."""
    import httpx2
    from huggingface_hub.utils import hf_raise_for_status, http_stream_backoff

    while have != file.bytes:
        before = have
        headers = headers_for(file.site, token)
        if have:
            headers["Range"] = f"bytes={have}-"
        try:
            # what is raised in the block must not reach its own retries, which cannot repeat the block
            with http_stream_backoff(
                "GET", file.url, headers=headers, timeout=SECONDS, retry_on_exceptions=()
            ) as response:
                if response.status_code == ALL_HERE:
                    return
                hf_raise_for_status(response)
                if have and response.status_code == WHOLE:  # the server ignores ranges
                    opened.truncate(0)
                    have = 0
                for block in response.iter_raw():
                    opened.write(block)
                    have += len(block)
                    received(have)
            if file.bytes is None:
                return
        except httpx2.TransportError:
            if have == before:
                raise
        if have == before or have > (file.bytes or have):
            raise ValueError(f"{file.site} sends {have:,} bytes instead of {file.bytes:,}; try again later")


def _check(file: RemoteFile, part: Path, checked: Callable[[int], None]) -> None:
    """Compare the file's checksum with the site's; a wrong file is removed."""
    if not file.sha256:
        return
    digest, read = hashlib.sha256(), 0
    with part.open("rb") as opened:
        while block := opened.read(READ_AT_ONCE):
            digest.update(block)
            read += len(block)
            checked(read)
    if digest.hexdigest() != file.sha256:
        part.unlink()
        site = "the Hub's" if file.site == HUB else f"{file.site}'s"
        raise ValueError(f"The file's SHA-256 checksum is not {site}, so it was removed; download it again")
