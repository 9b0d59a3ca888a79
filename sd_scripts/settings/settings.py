"""The settings of a run: its option groups, filled from defaults, a TOML file and the command line."""

import copy
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, overload

from sd_scripts.formats.secrets import without_secrets
from sd_scripts.formats.words import shortened
from sd_scripts.options.spec import Group, Option, OptionGroup, Remark, until_wrong, without
from sd_scripts.settings.checks.between import problems_between
from sd_scripts.settings.family_options import each_option

Contents = TypeVar("Contents")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
Groups = tuple[type[OptionGroup], ...]


@dataclass(frozen=True, kw_only=True)
class Script:
    """A training script: its family, its method and its option groups."""

    file: str
    family: str
    method: str
    groups: Groups

    @property
    def identity(self) -> dict[str, str]:
        """Return the keys by which a saved file names its script."""
        return {"family": self.family, "method": self.method}


@functools.cache
def _options(script: Script) -> Mapping[str, Option]:
    """Return the options of a script by name, as its family has them."""
    return {o.name: o.for_family(script.family) for group in script.groups for o in each_option(group)}


@dataclass(frozen=True)
class Problem:
    """An error that keeps the run from starting."""

    names: tuple[str, ...]
    """The options concerned, or the unknown flag; empty if it is not known which."""
    text: str

    def __str__(self) -> str:
        return f"{', '.join(self.names)}: {self.text}" if self.names else self.text


class Settings:
    """The options of a run by group: `settings[SavingOptions].output_name`; flat in the file, typed in the code.

    Paths read through a group are expanded; values written to a file keep their ~.
    """

    def __init__(
        self,
        script: Script,
        values: Mapping[str, Any],
        *,
        remarks: Iterable[Remark] = (),
        unknown: Mapping[str, Any] | None = None,
        problems: Iterable[Problem] = (),
    ):
        self.script = script
        self._problems = tuple(problems)
        self.options = dict(_options(script))
        self.remarks = list(remarks)
        self.unknown = dict(unknown or {})
        """Unknown keys of the file, kept so that saving writes them back."""
        if strange := values.keys() - self.options:
            raise ValueError(f"unknown option: {', '.join(sorted(strange))}")
        read = {name: o.default for name, o in self.options.items() if script.family in o.family_defaults}
        read |= {name: self.options[name].read(value) for name, value in values.items()}
        self.filled = {g: g(**{o.name: read[o.name] for o in each_option(g) if o.name in read}) for g in script.groups}
        self._located = {group: self._locate(filled) for group, filled in self.filled.items()}
        self._contents: dict[tuple[Callable[[Path], Any], Path], Any] = {}

    def __getitem__(self, group: type[Group]) -> Group:
        return self._located[group]  # type: ignore[return-value]

    def get(self, group: type[Group]) -> Group | None:
        """Return a group of options, None if the script does not have it."""
        return self[group] if group in self.filled else None

    def value(self, name: str) -> Any:
        """Return the value of the option of this name, read through its group."""
        return next(getattr(filled, name) for filled in self._located.values() if hasattr(filled, name))

    def has_effect(self, name: str) -> bool:
        """Return whether the option of this name works for the family."""
        return self.script.family in self.options[name].families

    def read_once(self, read: Callable[[Path], Contents], path: Path) -> Contents:
        """Return the result of `read` for a file that an option names: these settings and all their copies read it
        once, so that a start checks and uses the same contents."""
        if (read, path) not in self._contents:
            self._contents[read, path] = read(path)
        contents: Contents = self._contents[read, path]
        return contents

    def replaced(self, values: Mapping[str, Any]) -> "Settings":
        """Return a copy with other values of some options."""
        changed = copy.copy(self)
        changed.filled = {
            group: replace(filled, **{name: value for name, value in values.items() if hasattr(filled, name)})  # type: ignore[type-var]
            for group, filled in self.filled.items()
        }
        changed._located = {group: changed._locate(filled) for group, filled in changed.filled.items()}
        return changed

    def without(self, problems: Iterable[Problem]) -> "Settings":
        """Return a copy in whose groups reading a value named in a problem raises WrongValue, which ends a check."""
        wrong = {name for problem in problems for name in problem.names}
        checked = copy.copy(self)
        checked._located = {group: without(filled, wrong) for group, filled in self._located.items()}
        return checked

    def _locate(self, filled: OptionGroup) -> OptionGroup:
        paths = {o.name: o.located(getattr(filled, o.name)) for o in each_option(type(filled)) if o.path}
        return replace(filled, **paths) if paths else filled  # type: ignore[type-var]

    def values(self) -> dict[str, Any]:
        """Return the value of every option by name."""
        return {o.name: getattr(filled, o.name) for g, filled in self.filled.items() for o in each_option(g)}

    def changed(self) -> dict[str, Any]:
        """Return the values that differ from the defaults and may be written to a file: no secrets."""
        return {
            name: value
            for name, value in self.values().items()
            if value != self.options[name].default and not self.options[name].secret
        }

    def secrets(self) -> dict[str, str]:
        """Return the secrets that are set, by the environment variables that pass them on."""
        given = ((self.options[name].secret, value) for name, value in self.values().items())
        return {variable: value for variable, value in given if variable and value and isinstance(value, str)}

    def saved(self) -> dict[str, Any]:
        """Return the contents of a settings file: family and method, the changed values, and the unknown keys that were
        read and are not named like secrets."""
        return {**self.script.identity, **without_secrets(self.unknown), **self.changed()}

    def headings(self) -> dict[str, str]:
        """Return the title of the group of every option by name, in the order in which a file lists them."""
        return {o.name: group.title for group in self.script.groups for o in each_option(group)}

    def remark(self, sentence: str) -> None:
        """Add a remark found later in the run. The sentence begins with an option's name and a colon."""
        name, _, text = sentence.partition(": ")
        self.remarks.append(Remark(name, text))

    def wrong_values(self) -> list[str]:
        """Return a message for each value of the wrong type, out of range or not among the choices."""
        return [f"{name}: {why}" for name, why in self._wrong().items()]

    def problems(self) -> list[Problem]:
        """Return every error in the values; a value that is wrong by itself does not hide conflicts between others."""
        wrong = self._wrong()
        valid = {group: without(filled, wrong) for group, filled in self.filled.items()}
        within = [finding for filled in valid.values() for finding in until_wrong(filled.check)]
        between = (*within, *problems_between(valid, self.script.family))
        return [*self._problems, *(Problem((name,), shortened(why)) for name, why in (*wrong.items(), *between))]

    def _wrong(self) -> dict[str, str]:
        alone = ((name, self.options[name].problem(value)) for name, value in self.values().items())
        return {name: shortened(why) for name, why in alone if why}


Check = Callable[[Settings], Iterable[str]]
"""Yields sentences, or raises ValueError with one per line. Each begins with option names and a colon."""


@overload
def reading(check: Callable[[A], Iterable[str]], a: type[A], /) -> Check: ...
@overload
def reading(check: Callable[[A, B], Iterable[str]], a: type[A], b: type[B], /) -> Check: ...
@overload
def reading(check: Callable[[A, B, C], Iterable[str]], a: type[A], b: type[B], c: type[C], /) -> Check: ...
def reading(check: Callable[..., Iterable[str]], *parts: type) -> Check:
    """Return a check of settings that calls `check` with these parts: groups, and Script. It finds nothing in settings
    without one of the groups."""

    def checked(valid: Settings) -> Iterable[str]:
        if not valid.filled.keys() >= {*parts} - {Script}:
            return ()
        return check(*(valid.script if part is Script else valid[part] for part in parts))

    return checked
