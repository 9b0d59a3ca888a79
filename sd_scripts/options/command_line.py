"""The flags of a training script: made from its options, read into settings."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from sd_scripts.options.catalog import Script
from sd_scripts.options.legacy import LegacyOptions
from sd_scripts.options.reading import from_values, unknown_text
from sd_scripts.options.settings import Groups, Settings
from sd_scripts.options.spec import Option, OptionGroup, each_option, option
from sd_scripts.options.toml_files import read_toml, write_toml


class ConfigFileOptions(OptionGroup, title="Settings file"):
    """Where settings come from: defaults, then the file, then the flags."""

    config_file: str | None = option(
        None, "TOML file with the same names as these flags; .toml is added where it is missing."
    )
    output_config: bool = option(
        False, "Write the settings that differ from the defaults to config_file, which must not exist yet, and end."
    )


class Parser(argparse.ArgumentParser):
    """Tells a mistake in one sentence that begins with the option's name, and leaves with 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, message.removeprefix("argument --") + "\n")


class GivenParser(argparse.ArgumentParser):
    """Returns only the flags that were given, and raises ValueError for what it cannot read."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message.removeprefix("argument --"))


def add_arguments(parser: argparse.ArgumentParser, *groups: type[OptionGroup], given_only: bool = False) -> None:
    """Give `parser` a flag for each option, in one section for each group; `--no-x` turns a bool off again.

    With `given_only` the parser returns just the flags that were given, as the words they are: for a reader that
    knows old spellings and checks later.
    """
    for group in groups:
        section = parser.add_argument_group(group.title, group.__doc__)
        for o in each_option(group):
            how = _flag(o) | ({"default": argparse.SUPPRESS} if given_only else {})
            if given_only and o.type is not bool:
                how["type"] = str
            section.add_argument(f"--{o.name}", **how)


def parser(script: Script, *, given_only: bool = False) -> argparse.ArgumentParser:
    """All flags of a script, in sections; see add_arguments."""
    kind = GivenParser if given_only else Parser
    made = kind(prog=script.file, usage="%(prog)s [--config_file SETTINGS.toml] [flags]")
    add_arguments(made, *_flag_groups(script), given_only=given_only)
    return made


def _flag_groups(script: Script) -> Groups:
    return (ConfigFileOptions, *script.flag_groups, LegacyOptions)


def given_flags(script: Script, argv: Sequence[str]) -> dict[str, Any]:
    """The flags among `argv` by name, as the words they are. Raises ValueError, one sentence a line, for others."""
    given, strange = parser(script, given_only=True).parse_known_args(argv)
    flags = [word for word in strange if word.startswith("-")]
    if flags:
        groups = (group for group in _flag_groups(script) if group is not LegacyOptions)
        known = [o.name for group in groups for o in each_option(group)]
        names = [word.lstrip("-").split("=")[0] for word in flags]
        raise ValueError("\n".join(f"--{name}: {unknown_text(name, known)}" for name in names))
    if strange:
        raise ValueError(f"{strange[0]}: is not preceded by an option; put text with spaces into quotation marks")
    return vars(given)


def from_command_line(script: Script, argv: Sequence[str] | None = None) -> Settings:
    """Settings of a training script: defaults, then --config_file, then the flags.

    Leaves the process with 0 after --help and --output_config, and with 2 where something is wrong, one sentence
    for each fault on stderr.
    """
    try:
        flags = given_flags(script, sys.argv[1:] if argv is None else argv)
    except ValueError as error:
        _leave(str(error))
    file = os.path.expanduser(flags.pop("config_file", None) or "")
    write = flags.pop("output_config", False)
    path = Path(file if file.endswith(".toml") else f"{file}.toml") if file else None
    if write:
        _write_config(script, flags, path)
    try:
        settings = from_values(script, read_toml(path) if path else {}, flags)
    except ValueError as error:
        _leave(f"config_file: {error}")
    if problems := settings.problems():
        _leave(*problems)
    return settings


def _write_config(script: Script, flags: dict[str, Any], path: Path | None) -> NoReturn:
    if path is None:
        _leave("output_config: needs config_file, the file to write")
    if path.exists():
        _leave(f"config_file: {path} is there already and is not overwritten; choose another name")
    settings = from_values(script, flags)
    if wrong := settings.wrong_values():
        _leave(*wrong)
    try:
        write_toml(path, settings.changed())
    except OSError as error:
        _leave(f"config_file: {path} cannot be written: {error.strerror}")
    print(f"{path} is written")
    sys.exit(0)


def _leave(*sentences: str) -> NoReturn:
    print(*sentences, sep="\n", file=sys.stderr)
    sys.exit(2)


def _flag(o: Option) -> dict[str, Any]:
    shown = f" Default: {o.default}." if o.default not in (None, False, "", []) else ""
    text = (o.help + shown).replace("%", "%%")
    if o.type is bool:
        return {"action": argparse.BooleanOptionalAction, "default": o.default, "help": text}
    names = "{" + ",".join(map(str, o.choices)) + "}" if o.choices else o.type.__name__.upper()
    how: dict[str, Any] = {"type": _reader(o), "default": o.default, "help": text, "metavar": names}
    return {**how, "nargs": "*"} if o.many else how


def _reader(o: Option) -> Callable[[str], Any]:
    def read(word: str) -> Any:
        value = o.read(word)
        value = value[0] if o.many and value else value
        if why := o.problem([value] if o.many else value):
            raise argparse.ArgumentTypeError(why)
        return value

    return read
