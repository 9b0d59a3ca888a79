"""Options: logging."""

from typing import Literal

from sd_scripts.options.spec import OptionGroup, option


class LoggingOptions(OptionGroup, title="Logging"):
    """TensorBoard, wandb and the console."""

    logging_dir: str | None = option(
        None,
        "Base directory for TensorBoard (and wandb) event files; tracking is off without it unless wandb is chosen.",
    )
    log_with: Literal["tensorboard", "wandb", "all"] | None = option(None, "Which experiment tracker to use.")
    log_prefix: str | None = option(None, "Prefix put before the timestamp in the per-run log folder.")
    log_tracker_name: str | None = option(
        None, "Tracker project name; per-script default is network_train / finetuning / dreambooth."
    )
    wandb_run_name: str | None = option(None, "Run name passed to wandb.init.")
    log_tracker_config: str | None = option(None, "TOML file with extra tracker init kwargs.")
    wandb_api_key: str | None = option(None, "wandb key used for login before training.", secret=True)
    log_config: bool = option(False, "Send the full argument set to the tracker as run config.")
    console_log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] | None = option(
        None, "Python logging verbosity; unset behaves as INFO."
    )
    console_log_file: str | None = option(None, "Write console log records to this file rather than stderr.")
    console_log_simple: bool = option(False, "Plain log formatter instead of the rich one.")
