"""What a saved file says of itself: modelspec.* for every model, ss_* with the training of a LoRA.

Names and forms are those that WebUI, ComfyUI and other programs read. Every value is text, as the format wants it.
"""

import functools
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sd_scripts.families.registry import card_of
from sd_scripts.library.safetensors_io import model_hash, old_model_hash
from sd_scripts.options.dataset import (
    AugmentOptions,
    BucketOptions,
    CacheOptions,
    CaptionOptions,
    DatasetOptions,
    ValidationOptions,
)
from sd_scripts.options.loss import LossOptions, NoiseOptions
from sd_scripts.options.metadata import MetadataOptions, thumbnail_url
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.network import NetworkOptions
from sd_scripts.options.optimizer import LrSchedulerOptions, OptimizerOptions
from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.settings import Settings
from sd_scripts.options.spec import OptionGroup
from sd_scripts.options.training import TrainingOptions

PROGRAM = "sd-scripts-studio"
Texts = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class TrainingMetadata:
    """What a run knows beyond its options when it begins."""

    session_id: int
    """A random number, by which files of one run are known to belong together."""
    started_at: float
    """Unix seconds, as all times here."""
    seed: int
    """The seed in use, drawn if it was not set."""
    base_model_version: str
    optimizer: str
    """As optimizers.description gives it."""
    network_dim: int | str
    max_train_steps: int
    num_epochs: int
    num_batches_per_epoch: int
    total_batch_size: int
    """Images in each micro-step, over all processes."""
    num_train_images: int
    """With repeats, as the next two."""
    num_reg_images: int = 0
    num_validation_images: int = 0
    resolution: tuple[int, int] = (1024, 1024)
    """Width and height."""
    datasets: list[dict[str, Any]] | None = None
    """For ss_datasets, one record each; only if the data came from dataset_config."""
    tag_frequency: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Folder -> tag -> how often."""
    dataset_dirs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Folder -> {"n_repeats": ..., "img_count": ...}."""
    reg_dataset_dirs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    bucket_info: Mapping[str, Any] | None = None
    """{"buckets": {"0": {"resolution": [w, h], "count": n}, ...}, "mean_img_ar_error": e}; None without buckets."""
    base_files: Mapping[str, str] = field(default_factory=dict)
    """As base_file_metadata gives it."""


SAME_NAME: dict[type[OptionGroup], tuple[str, ...]] = {
    SavingOptions: ("output_name",),
    MetadataOptions: ("training_comment",),
    OptimizerOptions: ("learning_rate", "max_grad_norm"),
    LrSchedulerOptions: ("lr_scheduler",),
    TrainingOptions: (
        "gradient_accumulation_steps",
        "gradient_checkpointing",
        "mixed_precision",
        "full_fp16",
        "fp8_base",
        "fp8_base_unet",
    ),
    ModelOptions: ("v2", "lowram", "clip_skip", "max_token_length"),
    NetworkOptions: ("network_module", "network_alpha", "network_dropout", "scale_weight_norms", "unet_lr"),
    CaptionOptions: ("caption_dropout_rate", "caption_dropout_every_n_epochs", "caption_tag_dropout_rate"),
    AugmentOptions: ("face_crop_aug_range",),
    DatasetOptions: ("prior_loss_weight", "resize_interpolation"),
    NoiseOptions: (
        "noise_offset",
        "noise_offset_random_strength",
        "multires_noise_iterations",
        "multires_noise_discount",
        "adaptive_noise_scale",
        "zero_terminal_snr",
        "ip_noise_gamma",
        "ip_noise_gamma_random_strength",
    ),
    LossOptions: ("min_snr_gamma", "loss_type", "huber_schedule", "huber_scale", "huber_c"),
    ValidationOptions: (
        "validation_seed",
        "validation_split",
        "max_validation_steps",
        "validate_every_n_epochs",
        "validate_every_n_steps",
    ),
}
"""Options that stand in the file as ss_ and their name."""

SAME_NAME_WITHOUT_CONFIG: dict[type[OptionGroup], tuple[str, ...]] = {
    AugmentOptions: ("color_aug", "flip_aug", "random_crop"),
    CaptionOptions: ("shuffle_caption", "keep_tokens"),
    BucketOptions: ("enable_bucket", "bucket_no_upscale", "min_bucket_reso", "max_bucket_reso"),
}
"""The same, for data described by options; with dataset_config they stand in ss_datasets."""

ALWAYS = (
    "ss_v2",
    "ss_base_model_version",
    "ss_network_module",
    "ss_network_dim",
    "ss_network_alpha",
    "ss_network_args",
)
"""What no_metadata leaves: enough to load the file rightly."""


def training_metadata(settings: Settings, facts: TrainingMetadata, *, epoch: int, steps: int, now: float) -> Texts:
    """The ss_* entries of a LoRA saved at `now`, after so many epochs and optimizer steps.

    `settings` must hold the groups of SAME_NAME, SAME_NAME_WITHOUT_CONFIG and CacheOptions.
    """
    found: dict[str, Any] = {
        **_same_name(settings, SAME_NAME),
        **_identity(facts, epoch, steps, now),
        **_adjusted(settings, facts),
        **(_described_by_config(facts) if facts.datasets is not None else _described_by_options(settings, facts)),
        **facts.base_files,
    }
    if settings[MetadataOptions].no_metadata:
        found = {key: value for key, value in found.items() if key in ALWAYS}
    return {key: str(value) for key, value in found.items()}


def base_file_metadata(settings: Settings) -> Texts:
    """Names and hashes of the base model and the VAE.

    Reads the files whole: once a run, seconds for a checkpoint.
    """
    model = settings[ModelOptions]
    vae = settings.values()[card_of(settings.script.family).vae_option]
    return {
        **_file_metadata(model.pretrained_model_name_or_path, "sd_model"),
        **_file_metadata(vae, "vae"),
    }


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
    lora: bool = True,
) -> Texts:
    """The modelspec.* entries (Stability AI's model metadata standard, 1.0.1).

    `title` is the fallback for metadata_title, `resolution` is (width, height), prediction_type is epsilon, v or None.
    """
    found: dict[str, str | None] = {
        "sai_model_spec": "1.0.1",
        "architecture": architecture + "/lora" * lora,
        "implementation": implementation,
        "title": options.metadata_title or title or f"{'LoRA' if lora else 'Checkpoint'}@{int(now)}",
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
    return {f"modelspec.{key}": value for key, value in found.items() if value is not None}


@functools.cache
def _version() -> str:
    """With the version that pip installed; without one where the program runs from its source folder alone."""
    try:
        return f"{PROGRAM}/{importlib.metadata.version(PROGRAM)}"
    except (importlib.metadata.PackageNotFoundError, KeyError, OSError, ValueError):
        return PROGRAM


def _same_name(settings: Settings, table: dict[type[OptionGroup], tuple[str, ...]]) -> dict[str, Any]:
    return {f"ss_{name}": getattr(settings[group], name) for group, names in table.items() for name in names}


def _identity(facts: TrainingMetadata, epoch: int, steps: int, now: float) -> dict[str, Any]:
    return {
        "ss_session_id": facts.session_id,
        "ss_training_started_at": facts.started_at,
        "ss_training_finished_at": now,
        "ss_sd_scripts_commit_hash": _version(),
        "ss_base_model_version": facts.base_model_version,
        "ss_num_train_images": facts.num_train_images,
        "ss_num_validation_images": facts.num_validation_images,
        "ss_num_reg_images": facts.num_reg_images,
        "ss_num_batches_per_epoch": facts.num_batches_per_epoch,
        "ss_num_epochs": facts.num_epochs,
        "ss_max_train_steps": facts.max_train_steps,
        "ss_epoch": epoch,
        "ss_steps": steps,
        "ss_optimizer": facts.optimizer,
        "ss_seed": facts.seed,
        "ss_network_dim": facts.network_dim,
        "ss_tag_frequency": json.dumps(facts.tag_frequency),
        "ss_dataset_dirs": json.dumps(facts.dataset_dirs),
    }


def _adjusted(settings: Settings, facts: TrainingMetadata) -> dict[str, Any]:
    """Options whose entry has another name or form."""
    network, cache = settings[NetworkOptions], settings[CacheOptions]
    rates = network.text_encoder_lr
    warmup = settings[LrSchedulerOptions].lr_warmup_steps
    adjusted: dict[str, Any] = {
        "ss_text_encoder_lr": rates[0] if len(rates) == 1 else rates or None,
        "ss_lr_warmup_steps": int(warmup) if warmup >= 1 or not warmup else warmup,
        "ss_cache_latents": cache.caches_latents,
        "ss_debiased_estimation": settings[LossOptions].debiased_estimation_loss,
    }
    if network.network_args:
        pairs = (item.partition("=") for item in network.network_args)
        adjusted["ss_network_args"] = json.dumps({key.strip(): value.strip() for key, _, value in pairs})
    return adjusted


def _described_by_config(facts: TrainingMetadata) -> dict[str, Any]:
    return {"ss_datasets": json.dumps(facts.datasets)}


def _described_by_options(settings: Settings, facts: TrainingMetadata) -> dict[str, Any]:
    return {
        **_same_name(settings, SAME_NAME_WITHOUT_CONFIG),
        "ss_batch_size_per_device": settings[DatasetOptions].train_batch_size,
        "ss_total_batch_size": facts.total_batch_size,
        "ss_resolution": facts.resolution,
        "ss_bucket_info": json.dumps(facts.bucket_info),
        "ss_reg_dataset_dirs": json.dumps(facts.reg_dataset_dirs),
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
