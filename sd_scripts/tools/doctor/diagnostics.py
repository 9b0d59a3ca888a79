"""A zip for bug reports: what the checks found, versions, and of some runs settings, events and console.

Secrets, home folders and the names of user and machine are removed from every text and file name.
"""

import contextlib
import getpass
import os
import platform
import re
import stat
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from sd_scripts.formats.atomic_files import atomic_file

RUN_FILES = ("config.toml", "launch.json", "events.jsonl", "console.log")
RUNS = 3
"""Last runs whose files are taken if none is named."""
FIRST, LAST = 64 * 1024, 1024 * 1024
"""Bytes of a larger file that are kept from its start and its end."""
REMOVED = "<removed>"
NAMES_OF_SECRETS = (
    r"[\w-]*(?:(?<!per_)token|api_?key|access_?key|secret(?:_?key)?|private_?key|passw(?:or)?d|credentials?)"
)
"""Names of options, flags and environment variables that hold secrets; keep_tokens and num_vectors_per_token are none
of them."""
SECRETS = (
    re.compile(rf"""((?<![\w-]){NAMES_OF_SECRETS}["']?\s*[=:]\s*)("[^"\n]*"|'[^'\n]*'|[^\s"',;&]+)""", re.I),
    re.compile(rf"""(--{NAMES_OF_SECRETS}["']?,?\s+)("[^"\n]*"|'[^'\n]*'|[^\s"',;&]+)""", re.I),
    re.compile(r"(\b(?:Bearer|Basic)\s+)([\w.~+/=-]{8,})", re.I),
    re.compile(r"(\b[a-z][a-z0-9+.-]*://)([^\s/@]+)(?=@)", re.I),
    re.compile(r"()\b((?:hf|ghp|gho|github_pat|glpat|sk|wandb_v1)[_-][A-Za-z0-9_-]{16,})\b"),
    re.compile(r"()(?<![0-9A-Za-z])([0-9a-f]{40})(?![0-9A-Za-z])"),
)
"""What comes before a secret, and the secret: after its name, in headers and addresses, and by its form. Keys of
Weights & Biases have 40 hexadecimal digits."""
SECRET_FILES = ("~/.cache/huggingface/token", "~/.huggingface/token")
SECRET_LENGTH = 8
"""Shorter values may occur in a text by coincidence."""
HOMES = re.compile(r"""(?:[A-Za-z]:)?[\\/]+(?:home|Users)[\\/]+[^\\/\s"'<>:|;,]+""", re.I)
"""The home folder of any account, with the separators of both systems, once or as JSON escapes them."""
COMMON_NAMES = ("root", "user", "localhost")
"""Names of accounts and machines that say nothing about a person."""


class Scrubber:
    """Removes from texts what does not belong into a bug report."""

    def __init__(self) -> None:
        self._values = sorted(_secret_values(), key=len, reverse=True)
        self._homes = _home_folders()
        self._names = [(_whole_word(name), shown) for name, shown in _names()]

    def __call__(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, REMOVED)
        for pattern in SECRETS:
            text = pattern.sub(_without_secret, text)
        for home in self._homes:
            text = home.sub("~", text)
        text = HOMES.sub("~", text)
        for pattern, shown in self._names:
            text = pattern.sub(shown, text)
        return text


def _without_secret(found: "re.Match[str]") -> str:
    """Return what comes before a secret, and its quotes, so that a settings file stays readable."""
    quote = found[2][0] if found[2][0] in "\"'" else ""
    return f"{found[1]}{quote}{REMOVED}{quote}"


def _secret_values() -> set[str]:
    """Return the secrets that this process can see: in its environment and in files that programs keep them in."""
    values = {value for name, value in os.environ.items() if re.fullmatch(NAMES_OF_SECRETS, name, re.I)}
    files = [Path(os.path.expanduser(name)) for name in SECRET_FILES]
    with contextlib.suppress(ImportError):  # of a broken environment, which is what the report is about
        from sd_scripts.runs.store import state_folder

        files.append(state_folder() / "token")
    for file in files:
        try:
            values.add(file.read_text(encoding="utf-8", errors="replace").strip())
        except OSError:  # it has none
            continue
    return {value for value in values if len(value) >= SECRET_LENGTH}


def _home_folders() -> "list[re.Pattern[str]]":
    """Return what matches this user's home folder, with any separators."""
    found = []
    for home in {str(Path.home()), os.path.realpath(Path.home())}:
        if parts := [re.escape(part) for part in re.split(r"[\\/]+", home) if part]:
            start = r"(?<![\w.~-])" + (r"[\\/]+" if home[0] in "\\/" else "")
            found.append(re.compile(start + r"[\\/]+".join(parts) + r"(?![\w.-])", re.I))
    return found


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
    return re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", re.I)


def last_runs() -> list[Path]:
    """Return the folders of the last runs in the list of the page; none if the list cannot be read."""
    try:
        from sd_scripts.runs.store import RunStore, store_path

        if not store_path().exists():
            return []
        store = RunStore()
    except (ImportError, ValueError):  # the rest of the report says more about a broken environment
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
            archive.writestr(scrub(name), scrub(text))


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
    """Return the start and the end of a file, in whole lines; None if it is no regular file or cannot be read."""
    try:
        if not stat.S_ISREG(os.lstat(file).st_mode):
            return None
        with file.open("rb") as opened:
            data = opened.read(FIRST + LAST)
            size = os.fstat(opened.fileno()).st_size
            if size > len(data):
                opened.seek(size - LAST)
                # a secret that is cut in two would not be recognised
                start, end = data[:FIRST].rpartition(b"\n")[0], opened.read(LAST).partition(b"\n")[2]
                data = start + f"\n... {size - len(start) - len(end)} bytes left out ...\n".encode() + end
    except OSError:
        return None
    return data.decode("utf-8", errors="replace")
