"""The settings of one run: its option groups, filled in from defaults, a TOML file and the command line."""

from typing import Any, TypeVar

from sd_scripts.options.spec import OptionGroup, each_option

Group = TypeVar("Group", bound=OptionGroup)
Groups = tuple[type[OptionGroup], ...]


class Settings:
    """`settings[CompileOptions].compile_mode`: flat in the file, typed in the code, a typo in neither."""

    def __init__(self, groups: Groups, values: dict[str, Any]):
        unknown = values.keys() - {o.name for group in groups for o in each_option(group)}
        if unknown:
            raise ValueError(f"unknown option: {', '.join(sorted(unknown))}")
        self.groups = groups
        self._filled = {g: g(**{o.name: values[o.name] for o in each_option(g) if o.name in values}) for g in groups}

    def __getitem__(self, group: type[Group]) -> Group:
        return self._filled[group]  # type: ignore[return-value]

    def problems(self) -> list[str]:
        """Every reason not to start, each naming its option."""
        found: list[str] = []
        for group, values in self._filled.items():
            alone = ((o.name, o.problem(getattr(values, o.name))) for o in each_option(group))
            found += [f"{name}: {why}" for name, why in (*alone, *values.check()) if why]
        return found
