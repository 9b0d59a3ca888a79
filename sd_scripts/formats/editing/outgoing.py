"""A dataset as a zip archive, made while it is sent: it needs no room on the disk."""

import io
import os
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

CHUNK = 1 << 20


class _Sent(io.RawIOBase):
    """Collects what zipfile writes. It cannot seek, so sizes follow each file."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, part: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        self._parts.append(bytes(part))
        return len(part)

    def taken(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


def zipped(files: Iterable[Path], root: Path) -> Iterator[bytes]:
    """Yield the bytes of an archive of these files, named by their path below `root`. Images are not compressed again;
    a file that is gone by then is left out."""
    sent = _Sent()
    with zipfile.ZipFile(sent, "w", zipfile.ZIP_STORED) as archive:
        for file in files:
            kind = (
                zipfile.ZIP_DEFLATED
                if file.suffix.lower() in (".txt", ".caption", ".json", ".toml")
                else zipfile.ZIP_STORED
            )
            try:
                entry = zipfile.ZipInfo.from_file(file, _name_in(file, root), strict_timestamps=False)
                source = file.open("rb")
            except OSError:
                continue
            entry.compress_type = kind
            with source, archive.open(entry, "w", force_zip64=True) as target:
                while part := source.read(CHUNK):
                    target.write(part)
                    yield sent.taken()
    yield sent.taken()


def _name_in(file: Path, root: Path) -> str:
    try:
        return file.relative_to(root).as_posix()
    except ValueError:
        return os.path.join(file.parent.name, file.name)
