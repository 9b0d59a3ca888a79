"""The training command of a configuration file, for scripts: `python gui.py --print-command --config FILE`."""

import sys
from pathlib import Path

from kohya_gui.form.configuration import open_file, prepare, tab_for
from kohya_gui.runs.shell_line import shell_line
from kohya_gui.tabs import TABS
from sd_scripts.settings.catalog import FAMILY_TITLES, script_for


def print_command(name: str | None, config: Path) -> int:
    """Print the command as one shell-quoted line with all settings as flags, so that it does not need a settings file.
    Nothing is written.

    `config` is TOML or a kohya_ss JSON, `name` the tab it is for; None detects it from the file.
    Returns the exit code: 2 with the problems, one per line, on stderr.
    Secrets are not in the line: set WANDB_API_KEY and HF_TOKEN.
    """
    try:
        tab = TABS[name] if name else tab_for(config)
        opened = open_file(config, tab)
        if opened.not_trained:
            shown = FAMILY_TITLES[opened.family]
            raise ValueError(
                f"{config.name}: these settings are for {opened.not_trained}, which is not supported. Open the file in "
                f"the page to reuse what applies to {shown} (images, schedule, saving), then choose one of its presets"
            )
        prepared = prepare(
            opened.values, script_for(opened.family, tab.method), opened.unknown, True, prompts=opened.prompts
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for remark in dict.fromkeys([*opened.remarks, *prepared.remarks]):
        print(remark, file=sys.stderr)
    print(shell_line(prepared.command.argv))
    return 0
