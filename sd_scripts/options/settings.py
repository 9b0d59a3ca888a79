"""The settings of one run: its option groups, filled in from defaults, a TOML file and the command line."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sd_scripts.options.checks import problems_between
from sd_scripts.options.spec import Option, OptionGroup, each_option, until_wrong, without
from sd_scripts.options.words import shortened

Group = TypeVar("Group", bound=OptionGroup)
Groups = tuple[type[OptionGroup], ...]


@dataclass(frozen=True)
class Remark:
    """Something the user should know about an option that does not stop the run."""

    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


@dataclass(frozen=True)
class Problem:
    """A reason not to start."""

    names: tuple[str, ...]
    """The options that it is about; of a flag that no option has, the flag."""
    text: str

    def __str__(self) -> str:
        return f"{', '.join(self.names)}: {self.text}"


class Settings:
    """`settings[CompileOptions].compile_mode`: flat in the file, typed in the code, a typo in neither.

    Asked for by group, paths are ready to be opened; what is written down keeps their ~.
    """

    def __init__(
        self,
        groups: Groups,
        values: Mapping[str, Any],
        *,
        remarks: Iterable[Remark] = (),
        unknown: Mapping[str, Any] | None = None,
    ):
        self.groups = groups
        self.options: dict[str, Option] = {o.name: o for group in groups for o in each_option(group)}
        self.remarks = list(remarks)
        self.unknown = dict(unknown or {})
        """Keys of the file that no option has; kept, so that saving gives them back."""
        if strange := values.keys() - self.options:
            raise ValueError(f"unknown option: {', '.join(sorted(strange))}")
        read = {name: self.options[name].read(value) for name, value in values.items()}
        self.filled = {g: g(**{o.name: read[o.name] for o in each_option(g) if o.name in read}) for g in groups}
        self._located = {group: self._locate(filled) for group, filled in self.filled.items()}

    def __getitem__(self, group: type[Group]) -> Group:
        return self._located[group]  # type: ignore[return-value]

    def _locate(self, filled: OptionGroup) -> OptionGroup:
        paths = [o for o in self.options.values() if o.path and hasattr(filled, o.name)]
        return replace(filled, **{o.name: o.located(getattr(filled, o.name)) for o in paths})  # type: ignore[type-var]

    def values(self) -> dict[str, Any]:
        """Every option with its value, by name."""
        return {o.name: getattr(filled, o.name) for g, filled in self.filled.items() for o in each_option(g)}

    def changed(self) -> dict[str, Any]:
        """What differs from the defaults and may be written down: no secrets."""
        return {
            name: value
            for name, value in self.values().items()
            if value != self.options[name].default and not self.options[name].secret
        }

    def saved(self) -> dict[str, Any]:
        """What belongs into a file: the changed values, and the unknown keys that came in."""
        return {**self.unknown, **self.changed()}

    def remark(self, sentence: str) -> None:
        """Add what only those who know more than the options can say: it begins with an option's name and a colon."""
        name, _, text = sentence.partition(": ")
        self.remarks.append(Remark(name, text))

    def wrong_values(self) -> list[str]:
        """Every value that is of the wrong type, out of range or not among the choices."""
        return [f"{name}: {why}" for name, why in self._wrong().items()]

    def problems(self) -> list[str]:
        """Every reason not to start that the values tell, each naming its option."""
        return [str(problem) for problem in self.mistakes()]

    def mistakes(self) -> list[Problem]:
        """Every reason not to start that the values tell: a value that is wrong by itself does not hide what is wrong
        between others."""
        wrong = self._wrong()
        sane = {group: without(filled, wrong) for group, filled in self.filled.items()}
        within = [finding for filled in sane.values() for finding in until_wrong(filled.check)]
        between = (*within, *problems_between(sane))
        return [Problem((name,), shortened(why)) for name, why in (*wrong.items(), *between)]

    def _wrong(self) -> dict[str, str]:
        alone = ((name, self.options[name].problem(value)) for name, value in self.values().items())
        return {name: shortened(why) for name, why in alone if why}
