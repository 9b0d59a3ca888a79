"""The flags that all dataset tools share."""

from pathlib import Path

from sd_scripts.settings.command_line import Parser


def parser(script: str, description: str) -> Parser:
    """Return a parser with the flags that all tools share."""
    made = Parser(prog=Path(script).name, description=description)
    made.add_argument("train_data_dir", help="Image folder.")
    made.add_argument("--full_path", action="store_true", help="Use full paths as keys, for images in several folders.")
    made.add_argument("--recursive", action="store_true", help="Include images in subfolders.")
    made.add_argument("--run_dir", help="Run folder for the tool's events and for commands such as stop.")
    return made
