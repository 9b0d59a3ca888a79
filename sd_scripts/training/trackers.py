"""TensorBoard and wandb: two more listeners of a run, through accelerate."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sd_scripts.options.logging import LoggingOptions
from sd_scripts.options.settings import Settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from sd_scripts.training.context import Context

PROJECT = "network_train"


def tracker_names(options: LoggingOptions) -> list[str]:
    if options.log_with == "all":
        return ["tensorboard", "wandb"]
    if options.log_with:
        return [options.log_with]
    return ["tensorboard"] if options.logging_dir else []


def tracker_folder(options: LoggingOptions) -> str | None:
    """TensorBoard's folder of this run: logging_dir/{log_prefix}{time}."""
    if not options.logging_dir:
        return None
    return str(Path(options.logging_dir) / f"{options.log_prefix or ''}{time.strftime('%Y%m%d%H%M%S')}")


def problems(options: LoggingOptions) -> list[str]:
    """Why the trackers cannot be started, with the remedy."""
    missing = [name for name in tracker_names(options) if importlib.util.find_spec(name) is None]
    found = [f"log_with: {name} is not installed; run `pip install {name}`" for name in missing]
    try:
        _arguments(options)
    except ValueError as error:
        found.append(str(error))
    return found


def start(context: Context) -> None:
    """From here on `context.accelerator.log` reaches them. Secrets are not among what log_config sends."""
    options = context.settings[LoggingOptions]
    names = tracker_names(options)
    if not names:
        return
    if options.wandb_api_key:
        os.environ["WANDB_API_KEY"] = options.wandb_api_key
    arguments = _arguments(options)
    if "wandb" in names:
        own = {"dir": str(context.run_dir), "name": options.wandb_run_name}  # not into the folder one happens to be in
        arguments["wandb"] = {**own, **arguments.get("wandb", {})}
    context.accelerator.init_trackers(
        options.log_tracker_name or PROJECT,
        config=_told(context.settings) if options.log_config else None,
        init_kwargs=arguments,
    )


def _arguments(options: LoggingOptions) -> dict[str, Any]:
    """The tables of log_tracker_config, by tracker."""
    if not options.log_tracker_config:
        return {}
    path = Path(options.log_tracker_config)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"log_tracker_config: '{path}' cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"log_tracker_config: '{path}' is not TOML: {error}") from None
    if loose := [name for name, value in document.items() if not isinstance(value, dict)]:
        raise ValueError(f"log_tracker_config: {loose[0]} stands outside of a table such as [wandb] in '{path}'")
    return document


def _told(settings: Settings) -> dict[str, Any]:
    """What differs from the defaults, in types that every tracker takes."""
    return {name: str(value) if isinstance(value, list) else value for name, value in settings.changed().items()}
