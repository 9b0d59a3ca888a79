"""The LoRA tab: which options stand in which panel, and what opening, saving and training mean there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kohya_gui.configuration import Opened, Prepared, open_file, prepare, save_file
from kohya_gui.training_tab import Method, Panel
from sd_scripts.options.catalog import script_for
from sd_scripts.options.dataset import CacheOptions, DatasetOptions
from sd_scripts.options.metadata import MetadataOptions
from sd_scripts.options.network import NetworkOptions
from sd_scripts.options.sampling import SampleOptions
from sd_scripts.options.saving import SavingOptions
from sd_scripts.runs.book import RunBook, WatchedRun

METHOD = "lora"

PANELS = (
    Panel(
        "Model",
        ("pretrained_model_name_or_path", "vae", "max_token_length", "clip_skip", "no_half_vae", "v_parameterization"),
        open=True,
    ),
    Panel(
        DatasetOptions.title,
        ("train_data_dir", "reg_data_dir", "dataset_config", "in_json", "conditioning_data_dir"),
        open=True,
    ),
    Panel("Saving", ("output_dir", "output_name"), rest=(SavingOptions,), open=True),
    Panel(
        "Network",
        ("network_dim", "network_alpha", "network_train_unet_only", "network_train_text_encoder_only", "network_args"),
        rest=(NetworkOptions,),
        open=True,
    ),
    Panel(
        "Basic",
        (
            *("max_train_steps", "max_train_epochs", "train_batch_size"),
            *("resolution", "caption_extension", "enable_bucket"),
            *("learning_rate", "unet_lr", "text_encoder_lr"),
            *("optimizer_type", "lr_scheduler", "lr_warmup_steps"),
            *("mixed_precision", "seed", "gradient_accumulation_steps"),
            *("cache_latents", "cache_text_encoder_outputs", "shuffle_caption"),
        ),
        rest=(CacheOptions,),
        open=True,
    ),
    Panel("Samples", rest=(SampleOptions,), late=True),
    Panel("Metadata", rest=(MetadataOptions,), late=True),
)


def save_configuration(path: Path, values: Mapping[str, Any], family: str, unknown: Mapping[str, Any]) -> Path:
    """Write what differs from the defaults as TOML; unknown keys go along. Returns the file written."""
    return save_file(path, values, script_for(family, METHOD), unknown)


def open_configuration(path: Path) -> Opened:
    """What a TOML file, or a JSON file of kohya_ss, says."""
    return open_file(path, METHOD)


def train_model(
    book: RunBook, values: Mapping[str, Any], family: str, unknown: Mapping[str, Any], print_only: bool = False
) -> tuple[Prepared, WatchedRun | None]:
    """Check, write the TOML into a new run folder and start; with `print_only`, only write it, beside the results.

    Raises ValueError with one sentence, or several lines of them.
    """
    if not print_only:
        book.check_free()  # before a folder for the run is made
    prepared = prepare(values, script_for(family, METHOD), unknown, print_only)
    if print_only:
        return prepared, None
    return prepared, book.start(prepared.command.argv, prepared.command.environment, prepared.folder)


LORA = Method(
    name=METHOD,
    panels=PANELS,
    first_preset="sdxl_safe_start",
    without=("run_dir",),  # the GUI chooses it
    save_configuration=save_configuration,
    open_configuration=open_configuration,
    train_model=train_model,
)
