"""The command line of a tool: flags from option groups, all mistakes together before anything heavy."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sd_scripts.formats.atomic_files import why_unwritable
from sd_scripts.options.spec import OptionGroup
from sd_scripts.runs.exit_codes import INTERRUPTED, MISTAKE
from sd_scripts.runs.reporter import Reporter
from sd_scripts.runs.tool import run
from sd_scripts.settings.command_line import Parser, flag_of
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.settings import Groups
from sd_scripts.settings.tools.lora_tools import filled, input_problem, option_problems

Values = Mapping[str, Any]
OUTPUTS = ("save_to", "dst_path")
"""Ends of the names of options that name a file to write."""
Aliases = Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Command:
    """Such a tool as a script."""

    about: str
    groups: Groups
    work: Callable[["Given", Reporter], Path | None]
    """Returns the file that it wrote, if any."""
    inputs: tuple[str, ...]
    """Options that name files to read."""
    may_replace: bool = False
    """Whether the output may be the input."""
    positional: str = ""
    """The option that may also be given as a word without a flag."""
    aliases: Aliases = field(default_factory=dict)
    """Option -> further names of its flag."""
    read_settings: Callable[[Path], Values] | None = None
    """Reads the TOML file of --config_file, whose values flags override; None: the tool has no such flag."""

    def named(self, **aliases: Sequence[str]) -> "Command":
        """Return the command with further names of flags, as a script of sd-scripts has them."""
        return Command(**{**vars(self), "aliases": {**self.aliases, **aliases}})

    def main(self, script: str, argv: Sequence[str] | None = None) -> int:
        """Run the tool and return its exit status: 2 for mistakes, all of which are reported."""
        try:
            with _terminated_as_interrupted():
                return self._main(script, argv)
        except KeyboardInterrupt:  # before there was any work
            print("Stopped", flush=True)
            return INTERRUPTED

    def _main(self, script: str, argv: Sequence[str] | None) -> int:
        flags = self._parser(script)
        if problem := self._take_settings_file(flags, argv):
            print(problem, file=sys.stderr)
            return MISTAKE
        values = vars(flags.parse_args(argv))
        run_dir = values.pop("run_dir")
        if self.read_settings:  # of a tool without, it may be an option
            values.pop("config_file")
        word = values.pop("word", None)
        if word is not None:
            values[self.positional] = word
        options = {o.name: o for group in self.groups for o in each_option(group)}
        given = Given({name: options[name].located(value) for name, value in values.items()})

        def work(reporter: Reporter) -> Path | None:
            if problems := self.problems(given.values):
                raise ValueError("\n".join(problems))
            path = self.work(given, reporter)
            if path:
                reporter.emit("saved", path=str(path.absolute()), bytes=path.stat().st_size)
            return path

        return run(work, run_dir)

    def problems(self, values: Values) -> list[str]:
        """Return a sentence for each mistake that options and names of files show."""
        if problems := option_problems(self.groups, values):
            return problems
        named = [(name, path) for name in self.inputs for path in _listed(values[name])]
        problems = [why for name, path in named if (why := input_problem(name, path))]
        outputs = {name: values[name] for name in values if name.endswith(OUTPUTS) and values[name]}
        for output, target in outputs.items():
            if not self.may_replace and any(_same(target, path) for _, path in named):
                problems.append(f"{output}: '{target}' is one of the files to read; choose another name")
            elif why := why_unwritable(Path(target)):
                problems.append(f"{output}: '{target}' cannot be written ({why}); choose another name")
        return problems

    def _take_settings_file(self, flags: Parser, argv: Sequence[str] | None) -> str:
        """Make the values of --config_file the defaults of the flags; return why that fails, or an empty string."""
        if self.read_settings is None:
            return ""
        only_file = Parser(add_help=False, allow_abbrev=False)
        only_file.add_argument("--config_file")
        file = only_file.parse_known_args(argv)[0].config_file
        options = {o.name: o for group in self.groups for o in each_option(group)}
        try:
            values = self.read_settings(Path(file).expanduser()) if file else {}
        except ValueError as error:
            return f"config_file: {error}"
        flags.set_defaults(**{name: options[name].read(value) for name, value in values.items()})
        return ""

    def _parser(self, script: str) -> Parser:
        made = Parser(prog=Path(script).name, description=self.about, allow_abbrev=False)
        for group in self.groups:
            section = made.add_argument_group(group.title, group.__doc__)
            for o in each_option(group):
                names = (o.name, *self.aliases.get(o.name, ()))
                section.add_argument(*(f"--{name}" for name in names), **{**flag_of(o, ""), "dest": o.name})
        if self.positional:
            made.add_argument("word", nargs="?", metavar=self.positional.upper(), help=f"As --{self.positional}.")
        if self.read_settings:
            made.add_argument("--config_file", help="TOML file with the names of these flags, which override it.")
        made.add_argument("--run_dir", help="Run folder for the tool's events and for commands such as stop.")
        return made


class Given:
    """The values of a command's options."""

    def __init__(self, values: Values):
        self.values = values

    def __getitem__(self, group: type[OptionGroup]) -> Any:
        return filled(group, self.values)


def _listed(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value] if value else []


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM end the tool as Ctrl-C does, so that no half-written file remains."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
