"""Which files in output_dir are this run's own: only those may it replace or remove."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sd_scripts.runs.outputs import STATE_ENDING, Fingerprint, existing_outputs, fingerprint, set_aside


class OwnOutputs:
    """Files of an earlier run of the same output_name are renamed when this run is about to write its first one, so
    that one which ends before has changed nothing. All of them go then, states too: `resume = latest` and the windows
    of save_last_n_* would take them for this run's."""

    def __init__(self, values: Mapping[str, Any], state: Path | None = None):
        """`values`: options by name; `state`: what the run resumes from. If that is one of the files found here, they
        are this run's; of a state from elsewhere they are not."""
        found = existing_outputs(values)
        resumes = state is not None and state.resolve() in (path.resolve() for path in found)
        self._values, self._replaces = values, bool(values.get("overwrite")) and not resumes
        self._earlier = [] if resumes else found
        owned = found if resumes or self._replaces else []
        self._own: dict[Path, Fingerprint | None] = {path: fingerprint(path) for path in owned}
        self._has_written = False
        self._folder = Path(os.path.expanduser(values.get("output_dir") or "."))
        self._name: str | None = values.get("output_name") or None

    @property
    def kept(self) -> list[Path]:
        """What was there when the run began, and is kept under another name."""
        return [] if self._replaces else self._earlier

    def make_room(self, path: Path) -> dict[Path, Path]:
        """Set aside what is not this run's: all of it before the first file, later what lies at `path`, which another
        run wrote meanwhile. Returns old -> new; OSError where renaming is not allowed."""
        first = not self._has_written and path.parent == self._folder
        found = existing_outputs(self._values) if first else [path]
        moved = set_aside([each for each in found if each.exists() and not self.owns(each)], self._name)
        self._has_written |= first
        return moved

    def wrote(self, path: Path) -> Fingerprint | None:
        """Note that `path` is this run's now."""
        self._own[path] = fingerprint(path)
        return self._own[path]

    def owns(self, path: Path) -> bool:
        own, now = self._own.get(path), fingerprint(path)
        return own is not None and own.matches(now)

    def replaced_states(self, written: Path) -> list[Path]:
        """States of the earlier run that `overwrite` gave up: once this run has one of its own they only mislead."""
        if not self._replaces:
            return []
        states = [path for path in self._earlier if path.name.endswith(STATE_ENDING) and path != written]
        self._earlier = []
        return [path for path in states if self.owns(path)]
