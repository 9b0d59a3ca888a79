"""Own outputs of a run: the only files in output_dir that it may replace or remove."""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sd_scripts.formats.atomic_files import RUNNING, beside
from sd_scripts.options.saving import SavingOptions
from sd_scripts.runs.folder import read_json
from sd_scripts.runs.outputs import (
    LAST,
    STATE_ENDING,
    Fingerprint,
    dated_name,
    existing_outputs,
    fingerprint,
    set_aside,
)
from sd_scripts.runs.process import process_born
from sd_scripts.training.context import Context


def other_runs(output_dir: Path, output_name: str | None) -> list[str]:
    """Return the run folders of other live runs that write files of this name to output_dir."""
    mark = re.compile(rf"\.{re.escape(output_name or LAST)}\.(\d+)\.{RUNNING}")
    found = []
    for path in output_dir.iterdir():
        if (named := mark.fullmatch(path.name)) and int(named[1]) != os.getpid():
            noted = read_json(path)
            born = process_born(int(named[1]))
            if isinstance(noted, dict) and born is not None and born == noted.get("born"):
                found.append(str(noted.get("run_dir")))
    return found


@contextlib.contextmanager
def marked_as_running(output_dir: Path, output_name: str | None, run_dir: Path) -> Iterator[None]:
    """Let other runs of this name see that this one writes here, until the end of the block."""
    mark = beside(output_dir / (output_name or LAST), RUNNING)
    with contextlib.suppress(OSError):
        mark.write_text(json.dumps({"born": process_born(os.getpid()), "run_dir": str(run_dir)}), encoding="utf-8")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            mark.unlink(missing_ok=True)


class OwnOutputs:
    """Keeps track of this run's files and renames an earlier run's with the same output_name.

    They are renamed just before this run writes its first file, so that a run which ends earlier has changed nothing.
    States are renamed too: `resume = latest` and save_last_n_* would take them for this run's.
    """

    def __init__(self, values: Mapping[str, Any], state: Path | None = None):
        """`values`: options by name; `state`: the state that the run resumes from. If it is among the files found here,
        all of them count as this run's."""
        found = existing_outputs(values)
        resumes = state is not None and state.resolve() in (path.resolve() for path in found)
        self._values = values
        self._replaces = bool(values.get("overwrite")) and not resumes
        self._earlier = [] if resumes else found
        owned = found if resumes or self._replaces else []
        self._own: dict[Path, Fingerprint | None] = {path: fingerprint(path) for path in owned}
        self._has_written = False
        self._folder = Path(os.path.expanduser(values.get("output_dir") or "."))
        self._name: str | None = values.get("output_name") or None

    @property
    def kept(self) -> list[Path]:
        """The files of an earlier run that are kept under a different name."""
        return [] if self._replaces else self._earlier

    def make_room(self, path: Path) -> dict[Path, Path]:
        """Rename files that are not this run's: all of them before the first save, later only one at `path`, which
        another run has written in the meantime. Return old -> new. Raises OSError if renaming is not permitted."""
        first = not self._has_written and path.parent == self._folder
        found = existing_outputs(self._values) if first else [path]
        moved = set_aside([each for each in found if each.exists() and not self.owns(each)], self._name)
        self._has_written |= first
        return moved

    def wrote(self, path: Path) -> Fingerprint | None:
        """Record that `path` is this run's."""
        self._own[path] = fingerprint(path)
        return self._own[path]

    def owns(self, path: Path) -> bool:
        own, now = self._own.get(path), fingerprint(path)
        return own is not None and own.matches(now)

    def replaced_states(self, written: Path) -> list[Path]:
        """Return the earlier run's states that `overwrite` replaces: they mislead once this run has one of its own."""
        if not self._replaces:
            return []
        states = [path for path in self._earlier if path.name.endswith(STATE_ENDING) and path != written]
        self._earlier = []
        return [path for path in states if self.owns(path)]


def find_outputs(context: Context, state: Path | None) -> OwnOutputs:
    """Return the files this run may replace; warn about the fate of an earlier run's files. `state`: the one that it
    resumes from."""
    name = context.settings[SavingOptions].output_name
    values = {**context.settings.values(), "output_dir": context.output_dir}
    if context.is_main:
        for other in other_runs(context.output_dir, name):
            context.warn(
                f"output_name: another run ({other}) is writing files of this name to '{context.output_dir}'; both "
                "sets of files are kept, under different names. Give each run its own output_name"
            )
        context.at_end.enter_context(marked_as_running(context.output_dir, name, context.run_dir))
    outputs = OwnOutputs(values, state)
    if kept := outputs.kept:
        more = f" and {len(kept) - 1} more" if kept[1:] else ""
        context.warn(
            f"output_name: '{context.output_dir}' contains files of an earlier run ({kept[0].name}{more}). Before "
            f"this run saves its first file, they are renamed to '{dated_name(kept, name)}...'. Set overwrite to "
            "replace them instead"
        )
    return outputs
