"""The LoRA tab: which options stand in which panel, and what opening, saving and training mean there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kohya_gui import recognise
from kohya_gui.configuration import Opened, Prepared, open_file, prepare, save_file
from kohya_gui.controls import Advice
from kohya_gui.training_tab import Method, Panel
from sd_scripts.options.catalog import script_for
from sd_scripts.options.dataset import CacheOptions, DatasetOptions
from sd_scripts.options.flux import (
    RECOMMENDED,
    FluxMemoryOptions,
    FluxModelOptions,
    FluxNetworkOptions,
    FluxObjectiveOptions,
)
from sd_scripts.options.metadata import MetadataOptions
from sd_scripts.options.network import NetworkOptions
from sd_scripts.options.sampling import SampleOptions
from sd_scripts.options.saving import SavingOptions
from sd_scripts.runs.book import RunBook, WatchedRun

METHOD = "lora"

MODEL = "pretrained_model_name_or_path"


def good_timesteps(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """schnell takes no guidance, so that option stays at its default there."""
    schnell = recognise.model(values.get(MODEL) or "", "flux").text.startswith("FLUX.1 schnell")
    return {**RECOMMENDED, "guidance_scale": FluxObjectiveOptions.guidance_scale} if schnell else RECOMMENDED


GOOD_TIMESTEPS = Advice(
    family="flux",
    about=(MODEL, *RECOMMENDED),
    good=good_timesteps,
    text="**Other values are recommended for FLUX.1:** "
    + ", ".join(f"`{name} = {value}`" for name, value in RECOMMENDED.items())
    + f"; schnell takes no guidance and keeps {FluxObjectiveOptions.guidance_scale}. "
    "The defaults of the field train it on something else than it predicts.",
    button="Use them",
)

PANELS = (
    Panel(
        "Model",
        (
            *("pretrained_model_name_or_path", "clip_l", "t5xxl", "ae", "t5xxl_max_token_length"),
            *("apply_t5_attn_mask", "vae", "max_token_length", "clip_skip", "no_half_vae", "v_parameterization"),
        ),
        rest=(FluxModelOptions,),
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
    Panel(
        FluxObjectiveOptions.title,
        (
            *("timestep_sampling", "discrete_flow_shift", "model_prediction_type"),
            *("guidance_scale", "sigmoid_scale", "weighting_scheme"),
        ),
        rest=(FluxObjectiveOptions,),
        advice=GOOD_TIMESTEPS,
        open=True,
    ),
    Panel(
        "Memory",
        (
            *("gradient_checkpointing", "cpu_offload_checkpointing", "blocks_to_swap"),
            *("fp8_base", "fp8_base_unet", "fp8_compute", "lowram"),
        ),
        rest=(FluxMemoryOptions,),
        open=True,
    ),
    Panel(
        FluxNetworkOptions.title,
        (
            *("train_double_block_indices", "train_single_block_indices"),
            *("train_blocks", "split_qkv", "train_t5xxl"),
            *("img_attn_dim", "img_mlp_dim", "img_mod_dim", "txt_attn_dim", "txt_mlp_dim", "txt_mod_dim"),
            *("single_dim", "single_mod_dim", "in_dims"),
        ),
        rest=(FluxNetworkOptions,),
    ),
    Panel("Samples", rest=(SampleOptions,), late=True),
    Panel("Metadata", rest=(MetadataOptions,), late=True),
)


def save_configuration(path: Path, values: Mapping[str, Any], family: str, unknown: Mapping[str, Any]) -> Path:
    """Write what differs from the defaults as TOML; unknown keys go along. Returns the file written."""
    return save_file(path, values, script_for(family, METHOD), unknown)


def open_configuration(path: Path, shown: str = "sdxl") -> Opened:
    """What a TOML file, or a JSON file of kohya_ss, says; a file that tells no family is of the one shown."""
    return open_file(path, METHOD, shown)


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
    first_presets={"sdxl": "sdxl_safe_start", "flux": "flux_safe_start"},
    without=("run_dir",),  # the GUI chooses it
    save_configuration=save_configuration,
    open_configuration=open_configuration,
    train_model=train_model,
)
