"""Metadata of saved files: modelspec.* of every model, ss_* about the training of a LoRA.

WebUI, ComfyUI and other programs read these names and formats. Every value is a string, as safetensors requires.
"""

import functools
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sd_scripts.library.files.safetensors_io import model_hash, old_model_hash
from sd_scripts.options.dataset import CacheOptions
from sd_scripts.options.metadata import MetadataOptions, thumbnail_url
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.networks.network_types import LYCORIS, read_items
from sd_scripts.options.optimization.loss import LossOptions
from sd_scripts.options.optimization.optimizer import LrSchedulerOptions
from sd_scripts.settings.settings import Settings

PROGRAM = "sd-scripts-studio"
TITLES = {"": "Checkpoint", "/lora": "LoRA", "/textual-inversion": "TextualInversion"}
"""End of modelspec.architecture -> first word of a title, if none is set."""
Texts = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class DatasetMetadata:
    """The values of the ss_* entries about data, not yet converted to text."""

    num_train_images: int
    """Counts repeats, without regularisation images."""
    num_reg_images: int = 0
    num_validation_images: int = 0
    num_batches_per_epoch: int
    """All ranks together."""
    resolution: tuple[int, int] = (1024, 1024)
    """Width and height of the first dataset."""
    tag_frequency: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Folder -> tag -> number of captions with it."""
    dataset_dirs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Folder -> {"n_repeats": ..., "img_count": ...}."""
    reg_dataset_dirs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    bucket_info: Mapping[str, Any] | None = None
    """{"buckets": {"0": {"resolution": [w, h], "count": n}, ...}, "mean_img_ar_error": e} of the first dataset; None
    without buckets."""
    datasets: list[dict[str, Any]] | None = None
    """ss_datasets: one entry for each dataset of a dataset_config; None when folder options described the data."""


@dataclass(frozen=True, kw_only=True)
class TrainingMetadata(DatasetMetadata):
    """Metadata that a run adds to its options."""

    session_id: int
    """A random number that all files of a run share."""
    started_at: float
    """Unix seconds."""
    seed: int
    """The seed in use, also if it was not set."""
    base_model_version: str
    optimizer: str
    """As optimizers.description gives it."""
    network_dim: int | str
    max_train_steps: int
    num_epochs: int
    total_batch_size: int
    """Images in each micro-step, over all processes."""
    base_files: Mapping[str, str] = field(default_factory=dict)
    """As base_file_metadata gives it."""


SAME_NAME = (
    *("output_name", "training_comment", "learning_rate", "max_grad_norm", "lr_scheduler"),
    *("gradient_accumulation_steps", "gradient_checkpointing", "mixed_precision", "full_fp16", "fp8_base"),
    *("fp8_base_unet", "v2", "lowram", "clip_skip", "max_token_length"),
    *("network_module", "network_alpha", "network_dropout", "scale_weight_norms", "unet_lr"),
    *("caption_dropout_rate", "caption_dropout_every_n_epochs", "caption_tag_dropout_rate"),
    *("face_crop_aug_range", "prior_loss_weight", "resize_interpolation"),
    *("noise_offset", "noise_offset_random_strength", "multires_noise_iterations", "multires_noise_discount"),
    *("adaptive_noise_scale", "zero_terminal_snr", "ip_noise_gamma", "ip_noise_gamma_random_strength"),
    *("min_snr_gamma", "loss_type", "huber_schedule", "huber_scale", "huber_c"),
    *("validation_seed", "validation_split", "max_validation_steps"),
    *("validate_every_n_epochs", "validate_every_n_steps"),
)
"""Options that the file has under their own names, after ss_."""

SAME_NAME_WITHOUT_CONFIG = (
    *("color_aug", "flip_aug", "random_crop", "shuffle_caption", "keep_tokens"),
    *("enable_bucket", "bucket_no_upscale", "min_bucket_reso", "max_bucket_reso"),
)
"""The same, for data described by options; with dataset_config they are in ss_datasets."""

ALWAYS = (
    "ss_v2",
    "ss_base_model_version",
    "ss_network_module",
    "ss_network_dim",
    "ss_network_alpha",
    "ss_network_args",
)
"""What no_metadata keeps: what other programs need to load the file."""


def training_metadata(settings: Settings, run: TrainingMetadata, *, epoch: int, steps: int, now: float) -> Texts:
    """Return the ss_* entries of a LoRA saved at `now` (Unix seconds) after this many epochs and optimizer steps."""
    values = settings.values()
    warmup = settings[LrSchedulerOptions].lr_warmup_steps
    entries: dict[str, Any] = {
        **_same_name(values, SAME_NAME),
        **_identity(run, epoch, steps, now),
        "ss_lr_warmup_steps": int(warmup) if warmup >= 1 or not warmup else warmup,
        "ss_cache_latents": settings[CacheOptions].caches_latents,
        "ss_debiased_estimation": settings[LossOptions].debiased_estimation_loss,
        **_network(settings.get(NetworkOptions)),
        **_dataset(values, run),
        **run.base_files,
    }
    if settings[MetadataOptions].no_metadata:
        entries = {key: value for key, value in entries.items() if key in ALWAYS}
    return {key: str(value) for key, value in entries.items()}


def base_file_metadata(base: str | None, vae: str | None) -> Texts:
    """Return names and hashes of the base model and the VAE. Reads the files whole, which takes seconds."""
    return {**_file_metadata(base, "sd_model"), **_file_metadata(vae, "vae")}


def modelspec(
    options: MetadataOptions,
    *,
    architecture: str,
    implementation: str,
    title: str | None,
    resolution: tuple[int, int],
    now: float,
    prediction_type: str | None,
    timestep_range: tuple[int, int] | None = None,
    suffix: str = "/lora",
) -> Texts:
    """Return the modelspec.* entries (Stability AI's model metadata standard, 1.0.1).

    `title` is the fallback for metadata_title, `resolution` is (width, height), prediction_type is epsilon, v or None.
    `suffix` is the kind of an adapter's file; empty for a whole model.
    """
    entries: dict[str, str | None] = {
        "sai_model_spec": "1.0.1",
        "architecture": architecture + suffix,
        "implementation": implementation,
        "title": options.metadata_title or title or f"{TITLES[suffix]}@{int(now)}",
        "resolution": f"{resolution[0]}x{resolution[1]}",
        "author": options.metadata_author,
        "description": options.metadata_description,
        "license": options.metadata_license,
        "tags": options.metadata_tags,
        "date": datetime.fromtimestamp(int(now)).isoformat(),
        "prediction_type": prediction_type,
        "timestep_range": ",".join(map(str, timestep_range)) if timestep_range else None,
        "implementation_version": _version(),
        "usage_hint": options.metadata_usage_hint,
        "thumbnail": thumbnail_url(options.metadata_thumbnail) if options.metadata_thumbnail else None,
        "merged_from": options.metadata_merged_from,
        "trigger_phrase": options.metadata_trigger_phrase,
        "preprocessor": options.metadata_preprocessor,
        "is_negative_embedding": options.metadata_is_negative_embedding,
    }
    return {f"modelspec.{key}": value for key, value in entries.items() if value is not None}


@functools.cache
def _version() -> str:
    """Return the program's name with its version, which is known only if pip installed it."""
    try:
        return f"{PROGRAM}/{importlib.metadata.version(PROGRAM)}"
    except (importlib.metadata.PackageNotFoundError, KeyError, OSError, ValueError):
        return PROGRAM


def _same_name(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {f"ss_{name}": values[name] for name in names if name in values}


def _identity(run: TrainingMetadata, epoch: int, steps: int, now: float) -> dict[str, Any]:
    return {
        "ss_session_id": run.session_id,
        "ss_training_started_at": run.started_at,
        "ss_training_finished_at": now,
        "ss_sd_scripts_commit_hash": _version(),
        "ss_base_model_version": run.base_model_version,
        "ss_num_train_images": run.num_train_images,
        "ss_num_validation_images": run.num_validation_images,
        "ss_num_reg_images": run.num_reg_images,
        "ss_num_batches_per_epoch": run.num_batches_per_epoch,
        "ss_num_epochs": run.num_epochs,
        "ss_max_train_steps": run.max_train_steps,
        "ss_epoch": epoch,
        "ss_steps": steps,
        "ss_optimizer": run.optimizer,
        "ss_seed": run.seed,
        "ss_network_dim": run.network_dim,
        "ss_tag_frequency": json.dumps(run.tag_frequency),
        "ss_dataset_dirs": json.dumps(run.dataset_dirs),
    }


def _network(network: NetworkOptions | None) -> dict[str, Any]:
    """Return the network options whose entry has a different name or format."""
    if network is None:
        return {}
    rates = network.text_encoder_lr
    entries: dict[str, Any] = {"ss_text_encoder_lr": rates[0] if len(rates) == 1 else rates or None}
    algorithm = network.algorithm
    if algorithm:  # which other programs know under LyCORIS's name
        entries["ss_network_module"] = LYCORIS
    if arguments := {**algorithm, **network.shared_arguments, **read_items(network.network_args)}:
        entries["ss_network_args"] = json.dumps(arguments)
    return entries


def _dataset(values: Mapping[str, Any], run: TrainingMetadata) -> dict[str, Any]:
    if run.datasets is not None:
        return {"ss_datasets": json.dumps(run.datasets)}
    return {
        **_same_name(values, SAME_NAME_WITHOUT_CONFIG),
        "ss_batch_size_per_device": values["train_batch_size"],
        "ss_total_batch_size": run.total_batch_size,
        "ss_resolution": run.resolution,
        "ss_bucket_info": json.dumps(run.bucket_info),
        "ss_reg_dataset_dirs": json.dumps(run.reg_dataset_dirs),
    }


def _file_metadata(source: str | None, name: str) -> Texts:
    if not source:
        return {}
    path = Path(source)
    if not path.is_file():  # a folder or a Hugging Face id
        return {f"ss_{name}_name": path.name if path.is_dir() else source}
    return {
        f"ss_{name}_name": path.name,
        f"ss_{name}_hash": old_model_hash(path),
        f"ss_new_{name}_hash": model_hash(path),
    }
