"""Experiment trackers, TensorBoard and wandb, through accelerate."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from sd_scripts.formats.disk import why_not_written
from sd_scripts.options.logging import LoggingOptions

PROJECT = "network_train"
RESTART_AFTER = 60.0
"""Seconds after a failure until TensorBoard is restarted with new files."""


def tracker_folder(options: LoggingOptions) -> str | None:
    """Return TensorBoard's folder of this run: logging_dir/{log_prefix}{time}."""
    if not options.logging_dir:
        return None
    return str(Path(options.logging_dir) / f"{options.log_prefix or ''}{time.strftime('%Y%m%d%H%M%S')}")


class Trackers:
    """Sends values to the trackers of log_with; a failure there is reported once and ends no run."""

    def __init__(self, accelerator: Accelerator, warn: Callable[[str], None]):
        self._accelerator, self._warn = accelerator, warn
        self._failed: dict[str, float] = {}
        """Tracker -> when it was last restarted."""

    def start(self, options: LoggingOptions, changed: Mapping[str, Any], run_dir: Path) -> None:
        """Start the trackers. log_config sends them the `changed` options, without secrets. Raises ValueError if one
        fails."""
        names = options.trackers
        if not names:
            return
        arguments = options.tracker_arguments()
        if "wandb" in names:
            own = {"dir": str(run_dir), "name": options.wandb_run_name}  # rather than the current folder
            arguments["wandb"] = {**own, **arguments.get("wandb", {})}
        # types that every tracker takes
        sent = {name: str(v) if isinstance(v, list) else v for name, v in changed.items()}
        try:
            name = options.log_tracker_name or PROJECT
            config = sent if options.log_config else None
            self._accelerator.init_trackers(name, config=config, init_kwargs=arguments)
        except Exception as error:  # each tracker raises its own
            option = "logging_dir" if names == ["tensorboard"] else "log_with"
            raise ValueError(f"{option}: {', '.join(names)} could not be started: {why_not_written(error)}") from error
        _silence_tensorboard_thread()

    def log(self, values: dict[str, float], step: int) -> None:
        for tracker in self._accelerator.trackers:
            try:
                if tracker.name in self._failed:
                    self._restart(tracker)
                tracker.log(values, step=step)
            except Exception as error:
                if tracker.name not in self._failed:
                    option = "logging_dir" if tracker.requires_logging_directory else "log_with"
                    self._warn(
                        f"{option}: {tracker.name} accepts no values: {why_not_written(error)}. The run continues "
                        "without it and tries again every minute; further failures are not reported"
                    )
                    self._failed[tracker.name] = time.monotonic()

    def finish(self) -> None:
        for tracker in self._accelerator.trackers:
            with contextlib.suppress(Exception):  # reported when it failed
                tracker.finish()

    def _restart(self, tracker: Any) -> None:
        """Restart TensorBoard, whose writer refuses everything after a failure; wandb tries again by itself."""
        if tracker.requires_logging_directory and time.monotonic() - self._failed[tracker.name] > RESTART_AFTER:
            self._failed[tracker.name] = time.monotonic()
            tracker.start()


def _silence_tensorboard_thread() -> None:
    """Keep TensorBoard's thread from printing a traceback if a file cannot be written, since Trackers reports that."""
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if type(args.thread).__name__ != "_AsyncWriterThread":
            before(args)

    threading.excepthook = hook
