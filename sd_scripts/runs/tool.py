"""Run a tool as a run folder sees it: report progress, obey the stop command, fail with a one-sentence message."""

import math
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from sd_scripts.formats.disk import sentence_of
from sd_scripts.formats.secrets import without_handed
from sd_scripts.runs.exit_codes import FAULT, INTERRUPTED, MISTAKE
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.reporter import Progress, Reporter


def start_phase(reporter: Reporter, name: str) -> Progress:
    """Begin a phase; reporting its progress prints new lines and raises KeyboardInterrupt on "stop", twice per
    second."""
    report, shown, last = reporter.cancellable_phase(name), -math.inf, ""

    def progress(done: int, total: int, note: str = "") -> None:
        nonlocal shown, last
        if done == total or time.monotonic() >= shown + 0.5:
            shown, before, last = time.monotonic(), last, " · ".join(filter(None, [f"{name} {done} of {total}", note]))
            if last != before:
                print(last, flush=True)
            report(done, total, note)

    return progress


def run(work: Callable[[Reporter], Path | None], run_dir: str | None) -> int:
    """Run `work`, which returns the file it wrote, if any, and return the exit status."""

    def finish(reporter: Reporter) -> None:
        path = work(reporter)
        reporter.emit("finished", path=str(path or ""))
        if path:
            print(f"Wrote {path}", flush=True)

    return reported(finish, run_dir)


def reported(work: Callable[[Reporter], None], run_dir: str | None, files: str = "all files") -> int:
    """Run `work`, which reports that it is finished, and report if it is not; return the exit status. `files` names
    the complete files if it is stopped."""
    try:
        reporter = Reporter(RunFolder(Path(run_dir)) if run_dir else None)
    except OSError as error:
        print(f"run_dir: '{run_dir}' cannot be written ({error.strerror}); choose another folder", file=sys.stderr)
        return MISTAKE
    try:
        work(reporter)
        return 0
    except KeyboardInterrupt:
        reporter.emit("stopped")
        print(f"Stopped; {files} written so far are complete", flush=True)
        return INTERRUPTED
    except Exception as error:
        return _failed(reporter, error)
    finally:
        reporter.close()


def _failed(reporter: Reporter, error: Exception) -> int:
    """Report one sentence for user errors, and the traceback for errors of ours; return the exit status."""
    details = "".join(traceback.format_exception(error))
    known = isinstance(error, ValueError | OSError)
    sentence = sentence_of(error) if known else f"{type(error).__name__}: {error}"
    reporter.emit("failed", error=sentence, details=details)
    print(without_handed(sentence if known else details), file=sys.stderr, flush=True)
    return MISTAKE if isinstance(error, ValueError) else FAULT
