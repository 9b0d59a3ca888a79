"""A zip for bug reports: findings of the checks, versions, and settings, events and console of some runs.

Secrets, home folders and the names of user and machine are removed from every text and file name.
"""

import contextlib
import getpass
import json
import os
import platform
import re
import stat
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from sd_scripts.formats.atomic_files import atomic_file
from sd_scripts.formats.secrets import SHORTEST, Hider, secret_values, ways_to_write

RUN_FILES = ("config.toml", "launch.json", "events.jsonl", "console.log")
RUNS = 3
"""Last runs whose files are taken if none is named."""
FIRST, LAST = 64 * 1024, 1024 * 1024
"""Bytes of a larger file that are kept from its start and its end."""
NAMES_OF_PEOPLE = ("metadata_author",)
"""Options whose values are removed like secrets."""
SECRET_FILES = ("~/.cache/huggingface/token", "~/.huggingface/token")
SEPARATOR = r"(?:[\\/]|%2F|%5C){1,8}"
"""Of both systems, also as JSON and addresses escape it."""
HOMES = re.compile(
    rf"""(?:(?<![A-Za-z])[A-Za-z](?::|%3A))?(?<![\\/]){SEPARATOR}(?:home|Users|(?:run{SEPARATOR})?media|Volumes){SEPARATOR}"""
    r"""(?:[^\\/\s"'<>:|;,%]|%(?!2F|5C)|[ ](?=[^\\/\n"'<>:|;,]{0,60}[^\\/\s"'<>:|;,][\\/])){1,255}""",
    re.I,
)
"""The home folder of any account, and the folder in which its disks are mounted."""
COMMON_NAMES = ("root", "user", "localhost")
"""Names of accounts and machines that do not identify a person."""


class Scrubber:
    """Removes private data from the texts of a bug report."""

    def __init__(self) -> None:
        self._secrets = Hider(_secret_values(), NAMES_OF_PEOPLE)
        self._homes = _home_folders()
        self._names = [(_whole_word(name), shown) for name, shown in _names()]

    def __call__(self, text: str) -> str:
        return self._without_names(self._secrets.text(text))

    def file(self, name: str, text: str) -> str:
        """Return the text of a file; of JSON, each object by itself, so that no secret hides in its structure."""
        if not name.endswith((".json", ".jsonl")):
            return self(text)
        parts = [text] if name.endswith(".json") else text.splitlines()
        return "".join(f"{self._json(part)}\n" for part in parts)

    def _json(self, text: str) -> str:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):  # cut, or no JSON
            return self(text)
        return json.dumps(self._secrets.json(found, self._without_names), ensure_ascii=False)

    def _without_names(self, text: str) -> str:
        for home in self._homes:
            text = home.sub("~", text)
        text = HOMES.sub("~", text)
        for pattern, shown in self._names:
            text = pattern.sub(shown, text)
        return text


def _secret_values() -> set[str]:
    """Return the secrets that this process can see: in its environment and in files that programs keep them in."""
    values = secret_values(os.environ)
    files = [Path(os.path.expanduser(name)) for name in SECRET_FILES]
    with contextlib.suppress(ImportError):  # of a broken environment, which the report is about
        from sd_scripts.runs.store import state_folder

        files.append(state_folder() / "token")
    for file in files:
        try:
            values.add(file.read_text(encoding="utf-8", errors="replace").strip())
        except OSError:  # it has none
            continue
    return {value for value in values if len(value) >= SHORTEST}


def _home_folders() -> "list[re.Pattern[str]]":
    """Return patterns of this user's home folder, with any separators."""
    found = []
    for home in {str(Path.home()), os.path.realpath(Path.home())}:
        if parts := [_any_form(part) for part in re.split(r"[\\/]+", home) if part]:
            start = r"(?<![\w.~-])" + (SEPARATOR if home[0] in "\\/" else "")
            found.append(re.compile(start + SEPARATOR.join(parts) + r"(?![\w.-])", re.I))
    return found


def _any_form(text: str) -> str:
    return f"(?:{'|'.join(map(re.escape, ways_to_write(text)))})"


def _names() -> Iterator[tuple[str, str]]:
    """Yield the name of this user and of this machine, and what stands for them."""
    with contextlib.suppress(OSError, KeyError, ImportError):  # it has no name
        yield getpass.getuser(), "user"
    yield Path.home().name, "user"
    yield platform.node(), "machine"
    yield platform.node().partition(".")[0], "machine"


def _whole_word(name: str) -> "re.Pattern[str]":
    if len(name) < 2 or name.lower() in COMMON_NAMES:
        return re.compile(r"(?!)")  # matches nothing
    return re.compile(rf"(?<![A-Za-z0-9]){_any_form(name)}(?![A-Za-z0-9])", re.I)


def last_runs() -> list[Path]:
    """Return the folders of the last runs in the list of the page; none if the list cannot be read."""
    try:
        from sd_scripts.runs.store import RunStore, store_path

        if not store_path().exists():
            return []
        store = RunStore()
    except (ImportError, ValueError):  # the rest of the report describes a broken environment better
        return []
    try:
        return [row.folder for row in store.rows(RUNS + len(store.queued())) if row.state != "queued"][:RUNS]
    finally:
        store.close()


def write(path: Path, table: str, runs: Sequence[Path]) -> None:
    """Write the zip. Raises OSError."""
    scrub = Scrubber()
    with atomic_file(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in _texts(table, runs):
            archive.writestr(scrub(name), scrub.file(name, text))


def _texts(table: str, runs: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yield the names and contents of the files in the zip."""
    yield "doctor.txt", f"{table}\n"
    yield "packages.txt", "".join(f"{line}\n" for line in sorted(_installed(), key=str.lower))
    for number, run in enumerate(runs, 1):
        for name in RUN_FILES:
            if (text := _text_of(run / name)) is not None:
                yield f"runs/{number}-{run.absolute().name}/{name}", text


def _installed() -> set[str]:
    return {f"{each.metadata['Name']}=={each.version}" for each in metadata.distributions()}


def _text_of(file: Path) -> str | None:
    """Return the start and the end of a file, in whole lines; None if it is not a regular file or cannot be read."""
    try:
        if not stat.S_ISREG(os.lstat(file).st_mode):
            return None
        with file.open("rb") as opened:
            data = opened.read(FIRST + LAST)
            size = os.fstat(opened.fileno()).st_size
            if size > len(data):
                opened.seek(size - LAST)
                # a secret that is cut in two would not be recognised
                start = data[:FIRST].rpartition(b"\n")[0]
                end = opened.read(LAST).partition(b"\n")[2]
                data = start + f"\n... {size - len(start) - len(end)} bytes left out ...\n".encode() + end
    except OSError:
        return None
    return data.decode("utf-8", errors="replace")
