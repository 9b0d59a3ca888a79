"""The command lines of sd-scripts' caption tools, which kohya_ss starts too."""

from argparse import SUPPRESS
from collections.abc import Sequence
from typing import Any

from sd_scripts.settings.command_line import Parser
from sd_scripts.settings.compat.captioning import MEANS, OPTIONS, RENAMED, WITHOUT_MEANING, of_tool
from sd_scripts.tools.captioning.__main__ import COMMAND

WITH_VALUE = ("max_data_loader_n_workers", "model_threshold", "output_path")
"""Options of theirs that have a value and mean nothing here."""


def main(script: str, section: str, argv: Sequence[str] | None = None) -> int:
    """Run the command as a caption tool with its own names and defaults; return the exit status."""
    given = vars(_parser(script).parse_args(argv))
    run_dir = given.pop("run_dir", None)
    flags = [_flag(name, value) for name, value in of_tool(section, given).items()]
    return COMMAND.main(script, [*flags, "--download", *(["--run_dir", run_dir] if run_dir else [])])


def _parser(script: str) -> Parser:
    flags = Parser(prog=script, argument_default=SUPPRESS, allow_abbrev=False)
    flags.add_argument("train_data_dir")
    for name in sorted({*OPTIONS, *RENAMED, *MEANS, *WITHOUT_MEANING} - {"train_data_dir"}):
        target = OPTIONS.get(RENAMED.get(name, name))
        if (target and target.type is not bool) or name in WITH_VALUE:
            flags.add_argument(f"--{name}")
        else:
            flags.add_argument(f"--{name}", action="store_true")
    flags.add_argument("--run_dir")
    return flags


def _flag(name: str, value: Any) -> str:
    if OPTIONS[name].type is bool:
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"
