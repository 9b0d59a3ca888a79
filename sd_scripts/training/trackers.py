"""TensorBoard and wandb: two more listeners of a run, through accelerate."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sd_scripts.formats.disk import why_not_written
from sd_scripts.options.logging import LoggingOptions
from sd_scripts.options.settings import Settings

if TYPE_CHECKING:
    from sd_scripts.training.context import Context

PROJECT = "network_train"
AGAIN_AFTER = 60.0
"""Seconds after which TensorBoard's files are begun anew where they could not be written."""


def tracker_folder(options: LoggingOptions) -> str | None:
    """TensorBoard's folder of this run: logging_dir/{log_prefix}{time}."""
    if not options.logging_dir:
        return None
    return str(Path(options.logging_dir) / f"{options.log_prefix or ''}{time.strftime('%Y%m%d%H%M%S')}")


def start(context: Context) -> None:
    """From here on `context.trackers.log` reaches them. Secrets are not among what log_config sends. ValueError where
    one cannot be started."""
    options = context.settings[LoggingOptions]
    names = options.trackers
    if not names:
        return
    if options.wandb_api_key:
        os.environ["WANDB_API_KEY"] = options.wandb_api_key
    arguments = options.tracker_arguments()
    if "wandb" in names:
        own = {"dir": str(context.run_dir), "name": options.wandb_run_name}  # not into the folder one happens to be in
        arguments["wandb"] = {**own, **arguments.get("wandb", {})}
    try:
        context.accelerator.init_trackers(
            options.log_tracker_name or PROJECT,
            config=_told(context.settings) if options.log_config else None,
            init_kwargs=arguments,
        )
    except Exception as error:  # each tracker raises its own
        option = "logging_dir" if names == ["tensorboard"] else "log_with"
        raise ValueError(f"{option}: {', '.join(names)} could not be started: {why_not_written(error)}") from error
    _quiet_tensorboard()


class Trackers:
    """Sends values to what was started; whatever fails there is told once and ends no run."""

    def __init__(self, started: Callable[[], list[Any]], warn: Callable[[str], None]):
        self._started, self._warn = started, warn
        self._failed: dict[str, float] = {}
        """Tracker -> when it was tried anew the last time."""

    def log(self, values: dict[str, float], step: int) -> None:
        for tracker in self._started():
            try:
                if tracker.name in self._failed:
                    self._begin_anew(tracker)
                tracker.log(values, step=step)
            except Exception as error:
                if tracker.name not in self._failed:
                    option = "logging_dir" if tracker.requires_logging_directory else "log_with"
                    self._warn(
                        f"{option}: {tracker.name} takes no values: {why_not_written(error)}. The run goes on without "
                        "it; whether it takes them again is tried every minute, and further failures are not told"
                    )
                    self._failed[tracker.name] = time.monotonic()

    def finish(self) -> None:
        for tracker in self._started():
            with contextlib.suppress(Exception):  # it was told when it failed, or was never started
                tracker.finish()

    def _begin_anew(self, tracker: Any) -> None:
        """A writer of TensorBoard that failed once refuses all that comes later; wandb tries again by itself."""
        if tracker.requires_logging_directory and time.monotonic() - self._failed[tracker.name] > AGAIN_AFTER:
            self._failed[tracker.name] = time.monotonic()
            tracker.start()


def _quiet_tensorboard() -> None:
    """Its thread prints a traceback when a file cannot be written; Trackers tells it in a sentence."""
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if type(args.thread).__name__ != "_AsyncWriterThread":
            before(args)

    threading.excepthook = hook


def _told(settings: Settings) -> dict[str, Any]:
    """What differs from the defaults, in types that every tracker takes."""
    return {name: str(value) if isinstance(value, list) else value for name, value in settings.changed().items()}
