"""Find the files that a run writes as output_name into output_dir, and keep an earlier run's files by renaming."""

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

STATE_ENDING = "-state"
DIFFUSERS_ENDING, EMBEDDING_ENDING, EMA_ENDING = "-diffusers", "-embedding", "-ema"
"""Added to a LoRA's name for the same weights under other key names, for embeddings that were trained with it, and to
any model's name for the moving average (EMA) of the weights."""
ENDINGS = (".safetensors", ".ckpt", ".pt", "")
"""Suffixes of saved models; the empty one is for a diffusers folder."""
DIFFUSERS_MARK = "model_index.json"
"""File that marks a folder as a diffusers model."""
LAST, EPOCH, STEP = "last", "epoch", "at"
"""Names of the final file and of the files of epochs and steps, if output_name is unset."""
COARSE_TIME, COARSE_TIME_ERROR = 10_000_000, 2_000_000_000
"""Nanoseconds: exFAT and FAT round mtimes to 10 ms or 2 s on disk."""


class Fingerprint(NamedTuple):
    """Identifies a written file or state after a rename."""

    bytes: int
    mtime_ns: int

    def matches(self, other: "Fingerprint | None") -> bool:
        if other is None or self.bytes != other.bytes:
            return False
        is_coarse = self.mtime_ns % COARSE_TIME == 0 or other.mtime_ns % COARSE_TIME == 0
        return abs(self.mtime_ns - other.mtime_ns) <= (COARSE_TIME_ERROR if is_coarse else 0)


def fingerprint(path: Path) -> Fingerprint | None:
    """Return the fingerprint of a file, or of a folder with all its files; None if it cannot be read."""
    try:
        size = sum(each.stat().st_size for each in (path, *path.rglob("*")) if each.is_file())
        return Fingerprint(size, path.stat().st_mtime_ns)
    except OSError:
        return None


def existing_outputs(values: Mapping[str, Any]) -> list[Path]:
    """Return the files and states in output_dir that a run with these options would overwrite or adopt.

    `values` are options by name; output_dir and output_name are read.
    """
    wanted = _pattern(values.get("output_name"))
    entries = _entries(_folder(values.get("output_dir")))
    return [path for path in entries if (found := wanted.fullmatch(path.name)) and _is_output(path, found["ending"])]


def free_name(output_dir: str | Path | None, output_name: str | None, taken: Collection[str] = ()) -> str:
    """Return output_name if it has no files yet and is not in `taken`, else the first free of name-2, name-3, ..."""
    name = output_name or LAST
    numbered = re.fullmatch(r"(.+)-([2-9]|[1-9]\d{1,2})", name)
    begin, number = (numbered[1], int(numbered[2])) if numbered else (name, 1)
    while name in taken or existing_outputs({"output_dir": output_dir, "output_name": name}):
        number += 1
        name = f"{begin}-{number}"
    return name


def dated_name(outputs: Sequence[Path], output_name: str | None) -> str:
    """Return the output_name under which the files of an earlier run are kept: with the time of the newest, when that
    run ended."""
    times = [path.stat().st_mtime for path in outputs if path.exists()]
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(max(times, default=None)))
    return free_name(outputs[0].parent if outputs else None, f"{output_name or LAST}-{stamp}")


def set_aside(outputs: Sequence[Path], output_name: str | None) -> dict[Path, Path]:
    """Rename files and states to their dated_name; return old -> new.

    Raises OSError where that is not permitted.
    """
    dated, pattern, moved = dated_name(outputs, output_name), _pattern(output_name), {}
    for path in outputs:
        found = pattern.fullmatch(path.name)
        assert found, f"{path} is not an output of {output_name}"
        moved[path] = path.with_name(f"{dated}{found['which'] or ''}{found['ending']}")
        os.rename(path, moved[path])
    return moved


def find_saved(path: Path, written: Fingerprint | None) -> Path | None:
    """Return where the file or state written as `path` is now: there, or next to it under a dated name. None if it is
    gone or was overwritten by another run.

    Without a recorded fingerprint, any file at `path` is accepted.
    """
    if written is None:
        return path if path.exists() else None
    if written.matches(fingerprint(path)):
        return path
    found = re.fullmatch(rf"(?P<begin>.+?){_WHICH}{_ENDING}", path.name)
    if not found:
        return None
    begin = LAST if found["begin"] in (EPOCH, STEP) else found["begin"]
    end = f"{found['which'] or ''}{found['ending']}"
    dated = re.compile(rf"{re.escape(begin)}-\d{{8}}-\d{{6}}(-\d{{1,3}})?{re.escape(end)}")
    renamed = (each for each in _entries(path.parent) if dated.fullmatch(each.name))
    return next((each for each in renamed if written.matches(fingerprint(each))), None)


_WHICH = rf"(?P<which>(-step\d{{8,}}|-\d{{6,}})?({EMA_ENDING})?({DIFFUSERS_ENDING})?({EMBEDDING_ENDING})?)"
_ENDING = rf"(?P<ending>{STATE_ENDING}|{'|'.join(map(re.escape, ENDINGS))})"


def _pattern(output_name: str | None) -> re.Pattern[str]:
    """Return the pattern of a run's output names: output_name, then the groups `which` and `ending`."""
    if output_name:
        return re.compile(f"{re.escape(output_name)}{_WHICH}{_ENDING}")
    return re.compile(rf"({LAST}|{EPOCH}(?=-\d)|{STEP}(?=-step)){_WHICH}{_ENDING}")


def _is_output(path: Path, ending: str) -> bool:
    """Return whether the path is an output of the kind that its extension shows, not an unrelated folder."""
    if ending == STATE_ENDING:
        return path.is_dir()
    return path.is_file() if ending else (path / DIFFUSERS_MARK).is_file()


def _folder(output_dir: str | Path | None) -> Path:
    return Path(os.path.expanduser(output_dir or "."))


def _entries(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(folder.iterdir())
    except OSError:  # missing or unreadable; reported where output_dir is prepared
        return
