"""Show, clear, export or import the compiled code of torch.compile on this machine.

python -m sd_scripts.tools.compile_cache show [--json] python -m sd_scripts.tools.compile_cache clear [--all] python -m
sd_scripts.tools.compile_cache export FILE python -m sd_scripts.tools.compile_cache import FILE
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from sd_scripts.formats.disk import format_bytes, sentence_of
from sd_scripts.formats.words import counted
from sd_scripts.machine.compile_cache import Contents, clear, contents
from sd_scripts.machine.compile_cache_file import TRUST, export_cache, import_cache
from sd_scripts.runs.exit_codes import FAULT, MISTAKE


def described(held: Contents) -> list[str]:
    """Return the lines that `show` prints."""
    whose = "TORCHINDUCTOR_CACHE_DIR" if held.chosen_by_user else "for this CPU and this version of PyTorch"
    lines = [f"Folder   {held.folder} ({whose})"]
    if held.files:
        lines.append(f"Holds    {counted(held.graphs, 'graph')}, {format_bytes(held.size)}")
        lines.append(f"Written  {_moment(held.oldest)} to {_moment(held.newest)}")
    else:
        lines.append("Empty: the next run compiles every graph")
    if held.others:
        lines.append(f"Others   {format_bytes(held.others)} for other CPUs and versions of PyTorch (clear --all)")
    return lines


def _moment(seconds: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="compile_cache", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = made.add_subparsers(dest="command", required=True)
    show = commands.add_parser("show", help="folder, number of graphs, size and age")
    show.add_argument("--json", action="store_true", help="print one JSON object")
    clearing = commands.add_parser("clear", help="remove everything the compiler has written")
    clearing.add_argument("--all", action="store_true", help="also for other CPUs and versions of PyTorch")
    exporting = commands.add_parser("export", help="write the cache into one file")
    exporting.add_argument("file", type=Path)
    importing = commands.add_parser("import", help=f"add the contents of such a file. {TRUST}")
    importing.add_argument("file", type=Path)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        print(_answer(arguments))
    except (ValueError, OSError) as error:
        print(sentence_of(error), file=sys.stderr)
        return MISTAKE if isinstance(error, ValueError) else FAULT
    return 0


def _answer(arguments: argparse.Namespace) -> str:
    if arguments.command == "clear":
        return f"Removed {format_bytes(clear(others=arguments.all))}"
    if arguments.command == "export":
        moved = export_cache(arguments.file)
        return f"Wrote {arguments.file}: {counted(moved.graphs, 'graph')}, {format_bytes(moved.size)}"
    if arguments.command == "import":
        moved = import_cache(arguments.file)
        return "\n".join(filter(None, (f"Imported {counted(moved.graphs, 'graph')}", moved.note)))
    held = contents()
    return json.dumps(asdict(held), default=str) if arguments.json else "\n".join(described(held))


if __name__ == "__main__":
    sys.exit(main())
