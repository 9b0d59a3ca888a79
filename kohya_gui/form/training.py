"""A training tab as data: its panels, and how it opens, saves and starts a training."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.form.configuration import Opened, Prepared, checked, leaked_secrets, of_family, open_file, prepare
from kohya_gui.form.controls import Panel
from kohya_gui.runs.past_runs import plan
from kohya_gui.tabs import Tab
from sd_scripts.formats.toml_files import write_toml
from sd_scripts.runs.queue import RunQueue
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values


@dataclass(frozen=True, kw_only=True)
class Training:
    """The definition of a training tab."""

    tab: Tab
    panels: tuple[Panel, ...]

    def save_configuration(
        self,
        path: Path,
        values: Mapping[str, Any],
        family: str,
        unknown: Mapping[str, Any],
        allowed_paths: AllowedPaths = EVERYWHERE,
    ) -> Path:
        """Write what differs from the defaults as TOML, with unknown keys preserved. Returns the file written.

        Raises ValueError, one sentence per line, for bad values or a path that cannot be written.
        """
        allowed_paths.check("configuration file", path)
        script = script_for(family, self.tab.method)
        settings = from_values(script, unknown, of_family(values, script))
        if problems := [*settings.wrong_values(), *leaked_secrets(settings)]:
            raise ValueError("\n".join(problems))
        try:
            write_toml(path, settings.saved(), settings.headings())
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror}") from error
        return path

    def open_configuration(
        self, path: Path, shown: str | None = None, allowed_paths: AllowedPaths = EVERYWHERE
    ) -> Opened:
        """Read a TOML file or a kohya_ss JSON file; one that does not name its family gets the family shown.

        Raises ValueError, one sentence, for a file that cannot be read or is for a different tab.
        """
        return open_file(path, self.tab, shown, allowed_paths)

    def check(
        self,
        values: Mapping[str, Any],
        family: str,
        unknown: Mapping[str, Any],
        allowed_paths: AllowedPaths = EVERYWHERE,
    ) -> None:
        """Raise ValueError, one sentence per line, for everything that prevents training."""
        script = script_for(family, self.tab.method)
        checked(of_family(values, script), script, unknown, allowed_paths)

    def train_model(
        self,
        queue: RunQueue,
        values: Mapping[str, Any],
        family: str,
        unknown: Mapping[str, Any],
        print_only: bool = False,
        allowed_paths: AllowedPaths = EVERYWHERE,
        prompts: str = "",
    ) -> tuple[Prepared, int | None]:
        """Check, write the TOML into a new run folder and queue it; with `print_only`, neither.

        Also returns the run's number. Raises ValueError, one sentence per line.
        """
        prepared = prepare(values, script_for(family, self.tab.method), unknown, print_only, allowed_paths, prompts)
        if print_only:
            return prepared, None
        return prepared, queue.add(plan(prepared, self.tab, family))
