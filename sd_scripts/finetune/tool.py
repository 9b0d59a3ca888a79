"""Shared by the tools: report progress, obey the stop command, and fail with a one-sentence message."""

import contextlib
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sd_scripts.formats.disk import sentence_of
from sd_scripts.options.command_line import Parser
from sd_scripts.runs.exit_codes import FAULT, INTERRUPTED, MISTAKE
from sd_scripts.runs.folder import RunFolder

Progress = Callable[[int, int], None]
RUN_DIR = "Run folder for the tool's events and for commands such as stop."


class Reporter:
    """Reports to the console and, with a run folder, as events."""

    def __init__(self, run_dir: str | None):
        self._folder = RunFolder(Path(run_dir)) if run_dir else None
        self._listens_from = self._folder.listens_from if self._folder else 0.0
        self._log = self._folder.log() if self._folder else None

    def tell(self, kind: Any, **payload: Any) -> None:
        """Write an event; on a full disk it is lost, rather than the work."""
        if self._log:
            with contextlib.suppress(OSError):
                self._log(kind, **payload)

    def warn(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        self.tell("warning", text=text)

    def phase(self, name: str) -> Progress:
        """Begin a phase; return its progress callback (done, total), which raises KeyboardInterrupt on "stop"."""
        shown = 0.0
        self.tell("phase", name=name)

        def progress(done: int, total: int) -> None:
            nonlocal shown
            self._raise_if_stopped()
            if done < total and time.monotonic() < shown + 0.5:
                return
            shown = time.monotonic()
            print(f"{name} {done} of {total}", flush=True)
            self.tell("phase", name=name, done=done, total=total)

        return progress

    def _raise_if_stopped(self) -> None:
        asked = self._folder.commands() if self._folder else ()
        if any(command["kind"] == "stop" and command.get("time", 0) > self._listens_from for command in asked):
            raise KeyboardInterrupt

    def close(self) -> None:
        if self._log:
            with contextlib.suppress(OSError):  # a full disk
                self._log.close()


def run(work: Callable[[Reporter], Path], run_dir: str | None) -> int:
    """Run `work`, which returns the file it wrote, and return the exit status."""
    try:
        reporter = Reporter(run_dir)
    except OSError as error:
        print(f"run_dir: '{run_dir}' cannot be written ({error.strerror}); choose another folder", file=sys.stderr)
        return MISTAKE
    try:
        path = work(reporter)
    except KeyboardInterrupt:
        reporter.tell("stopped")
        print("Stopped; all files written so far are complete", flush=True)
        return INTERRUPTED
    except Exception as error:
        return _failed(reporter, error)
    else:
        reporter.tell("finished", path=str(path))
        print(f"Wrote {path}", flush=True)
        return 0
    finally:
        reporter.close()


def _failed(reporter: Reporter, error: Exception) -> int:
    """Report one sentence for user errors, and the traceback for errors of ours; return the exit status."""
    details = "".join(traceback.format_exception(error))
    known = isinstance(error, ValueError | OSError)
    sentence = sentence_of(error) if known else f"{type(error).__name__}: {error}"
    reporter.tell("failed", error=sentence, details=details)
    print(sentence if known else details, file=sys.stderr, flush=True)
    return MISTAKE if isinstance(error, ValueError) else FAULT


def parser(script: str, description: str) -> Parser:
    """Return a parser with the flags that all tools share."""
    made = Parser(prog=Path(script).name, description=description)
    made.add_argument("train_data_dir", help="Image folder.")
    made.add_argument("--full_path", action="store_true", help="Use full paths as keys, for images in several folders.")
    made.add_argument("--recursive", action="store_true", help="Include images in subfolders.")
    made.add_argument("--run_dir", help=RUN_DIR)
    return made
