"""Options: logging."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from sd_scripts.formats.documents import read_toml
from sd_scripts.options.spec import OptionGroup, optional, path_option, switch


class LoggingOptions(OptionGroup, title="Logging"):
    """TensorBoard, wandb and the console. The page shows runs without any of these."""

    logging_dir: str | None = path_option("Folder for TensorBoard logs. Default: none are written.")
    log_with: Literal["tensorboard", "wandb", "all"] | None = optional(
        "Where to log metrics. Default: TensorBoard if logging_dir is set, otherwise nowhere."
    )
    log_prefix: str | None = optional("Prefix for the name of the log folder, before the time.")
    log_tracker_name: str | None = optional(
        "Project name for TensorBoard and wandb. Default: network_train.", label="Project name"
    )
    wandb_run_name: str | None = optional("Name of the run in wandb.", label="wandb run name")
    log_tracker_config: str | None = path_option(
        "TOML file with more arguments for the trackers, one table for each.", label="Tracker settings file"
    )
    wandb_api_key: str | None = optional(
        "API key of your wandb account. Passed to the run as WANDB_API_KEY and never saved.",
        label="wandb API key",
        secret="WANDB_API_KEY",
    )
    log_config: bool = switch("Log the settings of the run to the trackers too.")
    console_log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] | None = optional(
        "Lowest level of console messages. Default: INFO."
    )
    console_log_file: str | None = path_option("Write console messages to this file instead.")
    console_log_simple: bool = switch("Print plain messages without colour.")

    @property
    def trackers(self) -> list[str]:
        """Return the trackers that receive the metrics of the run."""
        if self.log_with == "all":
            return ["tensorboard", "wandb"]
        if self.log_with:
            return [self.log_with]
        return ["tensorboard"] if self.logging_dir else []

    def tracker_arguments(self) -> dict[str, Any]:
        """Return the tables of log_tracker_config by tracker. Raises ValueError, one sentence that names the option."""
        if not self.log_tracker_config:
            return {}
        path = Path(self.log_tracker_config)
        try:
            document = read_toml(path)
        except ValueError as error:
            raise ValueError(f"log_tracker_config: {error}") from None
        if loose := [name for name, value in document.items() if not isinstance(value, dict)]:
            raise ValueError(f"log_tracker_config: {loose[0]} in '{path}' must be inside a table such as [wandb]")
        return document

    def check(self) -> Iterable[tuple[str, str]]:
        if self.log_with in ("tensorboard", "all") and not self.logging_dir:
            yield "logging_dir", f"log_with = {self.log_with} needs a folder for TensorBoard's files"
