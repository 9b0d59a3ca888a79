"""TensorBoard and wandb: two more listeners of a run, through accelerate."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sd_scripts.options.logging import LoggingOptions
from sd_scripts.options.settings import Settings

if TYPE_CHECKING:
    from sd_scripts.training.context import Context

PROJECT = "network_train"


def tracker_folder(options: LoggingOptions) -> str | None:
    """TensorBoard's folder of this run: logging_dir/{log_prefix}{time}."""
    if not options.logging_dir:
        return None
    return str(Path(options.logging_dir) / f"{options.log_prefix or ''}{time.strftime('%Y%m%d%H%M%S')}")


def start(context: Context) -> None:
    """From here on `context.accelerator.log` reaches them. Secrets are not among what log_config sends."""
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
    context.accelerator.init_trackers(
        options.log_tracker_name or PROJECT,
        config=_told(context.settings) if options.log_config else None,
        init_kwargs=arguments,
    )


def _told(settings: Settings) -> dict[str, Any]:
    """What differs from the defaults, in types that every tracker takes."""
    return {name: str(value) if isinstance(value, list) else value for name, value in settings.changed().items()}
