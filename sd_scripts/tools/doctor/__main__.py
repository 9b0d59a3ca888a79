"""Check this machine: each line has a finding, and the remedy if there is a problem.

python -m sd_scripts.tools.doctor [--quick] [--json] [--zip FILE [--run FOLDER ...]]
"""

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from sd_scripts.formats.disk import sentence_of
from sd_scripts.runs.exit_codes import INTERRUPTED
from sd_scripts.tools.doctor import machine, torch_checks
from sd_scripts.tools.doctor.check import Check, Finding, record, skipped
from sd_scripts.tools.doctor.torch_process import TorchProcess

CHECKS = (*machine.CHECKS, *torch_checks.CHECKS)
STATUS_WIDTH, TITLE_WIDTH = 9, 16
WIDTHS = (60, 120)
"""Narrowest and widest line."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python gui.py --doctor", description="Check this machine. The exit code is 1 if there is a problem."
    )
    add = made.add_argument
    add(
        "--quick",
        action="store_true",
        help="leave out what takes longest: compiling, CUDA graph, bitsandbytes, fp8, int8, nf4",
    )
    add("--json", action="store_true", help="print a JSON object per line: the names of all checks, then each finding")
    add(
        "--zip",
        type=Path,
        metavar="FILE",
        help="also write a zip for a bug report: findings, versions, settings, events and console of the last runs, "
        "without keys, tokens, the names of home folders, user and machine",
    )
    add(
        "--run",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="run folder for --zip; repeatable. Default: the last runs of the page",
    )
    return made


def findings(checks: Sequence[Check]) -> Iterator[tuple[Check, Finding]]:
    """Run the checks in order; one that depends on another is skipped if that has a problem."""
    failed: dict[str, str] = {}
    with TorchProcess() as process:
        for check in checks:
            if check.needs in failed:
                finding = skipped(f"Not checked, since {failed[check.needs]} has a problem")
            else:
                finding = process.run(check) if check in torch_checks.CHECKS else check.run()
            if finding.status == "problem":
                failed[check.name] = check.title
            yield check, finding


def as_lines(check: Check, finding: Finding, width: int) -> str:
    """Return a finding as lines of a table."""
    text = f"{finding.text} {finding.remedy}".rstrip()
    head = f"{finding.status:{STATUS_WIDTH}}{check.title:{TITLE_WIDTH}}"
    wrapped = textwrap.wrap(text, width - len(head), break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * len(head)}".join([f"{head}{wrapped[0]}", *wrapped[1:]])


def conclusion(found: Sequence[Finding]) -> str:
    counts = {status: sum(finding.status == status for finding in found) for status in ("problem", "warning")}
    said = [f"{count} {status}{'s' if count > 1 else ''}" for status, count in counts.items() if count]
    return f"{' and '.join(said)}." if said else "No problems."


def main(argv: Sequence[str] | None = None) -> int:
    flags = parser().parse_args(argv)
    if missing := [folder for folder in flags.run if not folder.is_dir()]:
        parser().error(f"--run: folder not found: {missing[0]}")
    if flags.run and not flags.zip:
        parser().error("--run: needs --zip")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a console may lack a character of a path
    checks = [check for check in CHECKS if not (flags.quick and check.slow)]
    if flags.json:
        print(json.dumps({"checks": [check.title for check in checks]}), flush=True)
    width = min(max(shutil.get_terminal_size((WIDTHS[1], 24)).columns, WIDTHS[0]), WIDTHS[1])
    found = []
    for check, finding in findings(checks):
        found.append((check, finding))
        print(json.dumps(record(check, finding)) if flags.json else as_lines(check, finding, width), flush=True)
    if not flags.json:
        print(f"\n{conclusion([finding for _, finding in found])}")
    if flags.zip and not _write_zip(flags.zip, flags.run, found):
        return 1
    return int(any(finding.status == "problem" for _, finding in found))


def _write_zip(path: Path, runs: Sequence[Path], found: Sequence[tuple[Check, Finding]]) -> bool:
    """Write the diagnostics and report it on stderr; return whether that succeeded."""
    from sd_scripts.tools.doctor import diagnostics

    table = "\n".join(as_lines(check, finding, WIDTHS[1]) for check, finding in found)
    try:
        diagnostics.write(path, table, runs or diagnostics.last_runs())
    except (OSError, ValueError) as error:
        print(f"--zip: {path} cannot be written: {sentence_of(error)}", file=sys.stderr)
        return False
    print(f"Diagnostics for a bug report are in {path}. Look through them before you send them.", file=sys.stderr)
    return True


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
