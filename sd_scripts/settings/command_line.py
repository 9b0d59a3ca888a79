"""The flags of a training script: generated from its options and read into settings."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NoReturn

from sd_scripts.families.cards.registry import card_of
from sd_scripts.formats.documents import name_problem
from sd_scripts.formats.toml_files import read_toml, write_toml
from sd_scripts.formats.words import shortened
from sd_scripts.options.spec import Option, OptionGroup, optional, switch, truth
from sd_scripts.settings.catalog import flag_groups
from sd_scripts.settings.compat.legacy import LegacyOptions
from sd_scripts.settings.compat.musubi import MusubiOptions
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.reading import MOST_UNKNOWN, from_values, unknown_text
from sd_scripts.settings.settings import Groups, Problem, Script, Settings


class ConfigFileOptions(OptionGroup, title="Settings file"):
    """Flags override the settings file, which overrides the defaults."""

    config_file: str | None = optional("TOML file with the same names as these flags; a missing .toml is added.")
    output_config: bool = switch(
        "Write the settings that differ from the defaults to config_file, which must not exist yet, and exit."
    )


class PlanOptions(OptionGroup, title="Plan"):
    """Preview a run before it starts. Nothing is loaded, trained or written."""

    plan: bool = switch(
        "Print the plan of the run and exit: images, buckets, steps, the graphs that torch.compile will create, "
        "and times where they are known."
    )
    json: bool = switch("Print the plan as JSON.")


class Parser(argparse.ArgumentParser):
    """Reports an error in one sentence that begins with the option's name, and exits with code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, message.removeprefix("argument --") + "\n")


def add_arguments(
    parser: argparse.ArgumentParser, *groups: type[OptionGroup], method: str = "", family: str = ""
) -> None:
    """Add a flag for each option to `parser`, in a section for each group; `--no-x` turns a bool off. The help texts
    are those for `method` and `family`; empty: for all."""
    for group in groups:
        section = parser.add_argument_group(group.title, group.__doc__)
        for o in each_option(group):
            section.add_argument(f"--{o.name}", **flag_of(o.for_family(family) if family else o, method))


def parser(script: Script) -> argparse.ArgumentParser:
    """Return the parser of a script: all flags in sections, with their help."""
    made = Parser(prog=script.file, usage="%(prog)s [--config_file SETTINGS.toml] [flags]", allow_abbrev=False)
    add_arguments(made, *_flag_groups(script), method=script.method, family=script.family)
    return made


def _flag_groups(script: Script) -> Groups:
    return (ConfigFileOptions, PlanOptions, *flag_groups(script), LegacyOptions, MusubiOptions)


@dataclass(frozen=True)
class GivenFlags:
    """The flags of a command line by name, as unconverted words, and the problems found."""

    values: dict[str, Any]
    problems: list[Problem]


def given_flags(script: Script, argv: Sequence[str]) -> GivenFlags:
    """Read the flags of a training script; a mistake in one does not keep the others from being read."""
    return read_flags(_flag_groups(script), argv, card_of(script.family).aliases)


def read_flags(groups: Groups, argv: Iterable[str], aliases: Mapping[str, str] = MappingProxyType({})) -> GivenFlags:
    """Read the flags that these groups of options have. `aliases`: other names of flags -> the options meant."""
    options = {o.name: o for group in groups for o in each_option(group)}
    known = options.keys() - {o.name for group in (LegacyOptions, MusubiOptions) for o in each_option(group)}
    options |= {alias: options[name] for alias, name in aliases.items() if name in options}
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    unknown = 0
    for flag, words in _flags_with_words(argv):
        name, equals, text = flag.lstrip("-").partition("=")
        off = flag.startswith("--no-") and name.removeprefix("no-") in options and name not in options
        o = options.get(name.removeprefix("no-") if off else name) if flag.startswith("--") else None
        given = [text, *words] if equals else words
        if not flag:
            problems.append(_stray(words[0]))
        elif flag == "--":
            problems.append(Problem(("--",), "is not an option; leave it out"))
        elif o is None:
            shown, unknown = shortened(flag.partition("=")[0]), unknown + 1
            problems.append(Problem((shown,), unknown_text(shown, known if unknown <= MOST_UNKNOWN else ())))
        elif o.type is bool:
            values[o.name] = text if equals else not off
            problems += map(_stray, words[:1])
        elif o.many:
            values[o.name] = given
        elif not given:
            problems.append(Problem((o.name,), "needs a value"))
        else:
            values[o.name] = given[0]
            problems += map(_stray, given[1:2])
    return GivenFlags(values, problems)


def _stray(word: str) -> Problem:
    return Problem((shortened(word),), "does not follow an option; put text with spaces in quotation marks")


def _flags_with_words(argv: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag with the words that follow it; words before the first flag come with an empty one."""
    flag, words = "", list[str]()
    for word in argv:
        if _is_flag(word):
            if flag or words:
                yield flag, words
            flag, words = word, []
        else:
            words.append(word)
    if flag or words:
        yield flag, words


def _is_flag(word: str) -> bool:
    """Whether a word is a flag; a negative number is a value, and so is a text such as "-a cat"."""
    if not word.startswith("-") or word == "-" or " " in word.partition("=")[0]:
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def read_command_line(script: Script, argv: Sequence[str] | None = None) -> tuple[Settings, list[Problem]]:
    """Read the settings of a training script (defaults, then --config_file, then the flags) and the flags' problems.

    Exits with code 0 after --help and --output_config, and with 2 if --config_file cannot be read, one sentence for
    each mistake on stderr.
    """
    words = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(words):
        parser(script).print_help()
        sys.exit(0)
    given = given_flags(script, words)
    flags = dict(given.values)
    file = os.path.expanduser(flags.pop("config_file", None) or "")
    write = truth(flags.pop("output_config", False)) is not False
    for o in each_option(PlanOptions):
        flags.pop(o.name, None)
    path = Path(file if file.endswith(".toml") else f"{file}.toml") if file else None
    if write:
        _write_config(script, flags, path, given.problems)
    try:
        settings = from_values(script, read_toml(path) if path else {}, flags)
    except ValueError as error:
        wrong = from_values(script, flags).wrong_values()
        _refuse(*given.problems, f"config_file: {error}", *wrong)
    return settings, given.problems


def plan_format(script: Script, argv: Sequence[str] | None = None) -> Literal["", "text", "json"]:
    """Return how a command line asks for the plan of the run; empty if it does not."""
    flags = given_flags(script, sys.argv[1:] if argv is None else argv).values
    if truth(flags.get("plan", False)) is not True:
        return ""
    return "json" if truth(flags.get("json", False)) is True else "text"


def _write_config(script: Script, flags: dict[str, Any], path: Path | None, problems: Sequence[Problem]) -> NoReturn:
    settings = from_values(script, flags)
    if wrong := [*problems, *settings.wrong_values()]:
        _refuse(*wrong)
    if path is None:
        _refuse("output_config: needs config_file, the file to write")
    if why := name_problem(str(path)):
        _refuse(f"config_file: {why}")
    if path.exists():
        _refuse(f"config_file: {path} already exists and is not overwritten; choose another name")
    try:
        write_toml(path, settings.saved(), settings.headings())
    except OSError as error:
        _refuse(f"config_file: {path} cannot be written: {error.strerror}")
    print(f"Wrote {path}")
    sys.exit(0)


def _refuse(*sentences: object) -> NoReturn:
    print(*sentences, sep="\n", file=sys.stderr)
    sys.exit(2)


def flag_of(o: Option, method: str) -> dict[str, Any]:
    """Return the arguments of argparse's add_argument for an option's flag."""
    shown = f" Default: {o.default}." if o.default not in (None, False, "", []) else ""
    text = (o.help_for(method) + shown).replace("%", "%%")
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
