"""Metadata of saved files: the names and forms that other programs read."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sd_scripts.formats.models.safetensors_header import read_header
from sd_scripts.library.files.safetensors_io import save_model, with_hashes
from sd_scripts.library.files.ss_metadata import (
    ALWAYS,
    SAME_NAME,
    SAME_NAME_WITHOUT_CONFIG,
    TrainingMetadata,
    base_file_metadata,
    modelspec,
    training_metadata,
)
from sd_scripts.options.metadata import MetadataOptions, thumbnail_url
from sd_scripts.settings.catalog import SCRIPTS
from sd_scripts.settings.settings import Settings
from tests.support.scripts import SDXL_LORA

NAMES = """
session_id training_started_at training_finished_at output_name training_comment sd_scripts_commit_hash
base_model_version v2 num_train_images num_validation_images num_reg_images num_batches_per_epoch num_epochs epoch steps
max_train_steps gradient_accumulation_steps learning_rate unet_lr text_encoder_lr lr_scheduler lr_warmup_steps optimizer
max_grad_norm gradient_checkpointing mixed_precision full_fp16 fp8_base fp8_base_unet lowram seed cache_latents
network_module network_dim network_alpha network_dropout scale_weight_norms clip_skip max_token_length
caption_dropout_rate caption_dropout_every_n_epochs caption_tag_dropout_rate face_crop_aug_range prior_loss_weight
resize_interpolation noise_offset noise_offset_random_strength multires_noise_iterations multires_noise_discount
adaptive_noise_scale zero_terminal_snr min_snr_gamma ip_noise_gamma ip_noise_gamma_random_strength debiased_estimation
loss_type huber_schedule huber_scale huber_c validation_seed validation_split max_validation_steps
validate_every_n_epochs validate_every_n_steps tag_frequency dataset_dirs
"""
"""Entries of every LoRA file, without ss_."""
NAMES_OF_ONE_FOLDER = """
batch_size_per_device total_batch_size resolution color_aug flip_aug random_crop shuffle_caption enable_bucket
bucket_no_upscale min_bucket_reso max_bucket_reso keep_tokens reg_dataset_dirs bucket_info
"""

FACTS = TrainingMetadata(
    session_id=7,
    started_at=1.0e9,
    seed=42,
    base_model_version="sdxl_base_v1-0",
    optimizer="torch.optim.adamw.AdamW(weight_decay=0.1)",
    network_dim=16,
    max_train_steps=100,
    num_epochs=10,
    num_batches_per_epoch=10,
    total_batch_size=2,
    num_train_images=20,
    tag_frequency={"10_cat": {"cat": 2, "sitting": 1}},
    dataset_dirs={"10_cat": {"n_repeats": 10, "img_count": 2}},
)


def metadata(facts: TrainingMetadata = FACTS, **values: Any) -> dict[str, str]:
    return training_metadata(Settings(SDXL_LORA, values), facts, epoch=3, steps=30, now=1.0e9 + 60)


def test_a_lora_has_every_entry_that_others_read() -> None:
    assert set(metadata()) == {f"ss_{name}" for name in (NAMES + NAMES_OF_ONE_FOLDER).split()}


def test_with_dataset_config_the_data_are_listed_by_dataset() -> None:
    found = metadata(replace(FACTS, datasets=[{"is_dreambooth": True, "resolution": [1024, 1024]}]))
    assert set(found) == {f"ss_{name}" for name in f"{NAMES} datasets".split()}
    assert json.loads(found["ss_datasets"])[0]["is_dreambooth"] is True


def test_every_value_is_text_as_python_writes_it() -> None:
    found = metadata(gradient_checkpointing=True, cache_latents_to_disk=True, text_encoder_lr=[1e-5], unet_lr=1e-4)
    expected = {
        "ss_gradient_checkpointing": "True",
        "ss_cache_latents": "True",
        "ss_clip_skip": "None",
        "ss_text_encoder_lr": "1e-05",
        "ss_unet_lr": "0.0001",
        "ss_lr_warmup_steps": "0",
        "ss_epoch": "3",
        "ss_steps": "30",
        "ss_training_finished_at": "1000000060.0",
        "ss_resolution": "(1024, 1024)",
        "ss_bucket_info": "null",
        "ss_optimizer": "torch.optim.adamw.AdamW(weight_decay=0.1)",
    }
    assert {key: found[key] for key in expected} == expected
    assert json.loads(found["ss_tag_frequency"]) == {"10_cat": {"cat": 2, "sitting": 1}}
    assert metadata(lr_warmup_steps=0.1)["ss_lr_warmup_steps"] == "0.1"
    assert metadata(lr_warmup_steps=10)["ss_lr_warmup_steps"] == "10"


def test_network_args_are_json_and_present_only_if_set() -> None:
    assert "ss_network_args" not in metadata()
    found = metadata(network_args=["conv_dim=4", "loraplus_lr_ratio = 16"])
    assert json.loads(found["ss_network_args"]) == {"conv_dim": "4", "loraplus_lr_ratio": "16"}


def test_a_network_type_is_recorded_as_lycoris_names_it() -> None:
    found = metadata(network_type="lokr", factor=8, network_args=["loraplus_lr_ratio=16"])
    assert found["ss_network_module"] == "lycoris.kohya"
    assert json.loads(found["ss_network_args"]) == {"algo": "lokr", "factor": "8", "loraplus_lr_ratio": "16"}
    found = metadata(network_type="dora")
    assert json.loads(found["ss_network_args"]) == {"algo": "lora", "dora_wd": "True"}
    found = metadata(network_type="locon", conv_dim=4, network_module="networks.lora")
    assert (found["ss_network_module"], found["ss_network_args"]) == ("networks.lora", '{"conv_dim": "4"}')


def test_no_metadata_keeps_the_entries_loading_needs() -> None:
    facts = replace(FACTS, base_files={"ss_sd_model_name": "secret.safetensors"})
    assert set(metadata(facts, no_metadata=True, network_args=["conv_dim=4"])) == set(ALWAYS)


def test_the_lora_script_of_every_family_has_the_options_that_metadata_name() -> None:
    for script in SCRIPTS:
        if script.method == "lora":
            assert {*SAME_NAME, *SAME_NAME_WITHOUT_CONFIG} <= Settings(script, {}).options.keys()


def spec(options: MetadataOptions | None = None, **facts: Any) -> dict[str, str]:
    defaults: dict[str, Any] = {
        "architecture": "stable-diffusion-xl-v1-base",
        "implementation": "https://github.com/Stability-AI/generative-models",
        "title": "my_lora",
        "resolution": (1024, 768),
        "now": 1.0e9,
        "prediction_type": "epsilon",
    }
    return modelspec(options or MetadataOptions(), **{**defaults, **facts})


def test_modelspec_contains_only_known_values() -> None:
    found = spec()
    names = "sai_model_spec architecture implementation title resolution date prediction_type implementation_version"
    assert list(found) == [f"modelspec.{name}" for name in names.split()]
    assert found["modelspec.architecture"] == "stable-diffusion-xl-v1-base/lora"
    assert found["modelspec.resolution"] == "1024x768"
    assert found["modelspec.title"] == "my_lora"
    assert len(found["modelspec.date"]) == len("2001-09-09T01:46:40")
    assert spec(title=None)["modelspec.title"] == "LoRA@1000000000"
    assert spec(suffix="", title=None)["modelspec.title"] == "Checkpoint@1000000000"
    assert spec(MetadataOptions(metadata_title="Mine"))["modelspec.title"] == "Mine"
    assert spec(timestep_range=(0, 500))["modelspec.timestep_range"] == "0,500"


def test_a_thumbnail_file_becomes_a_thumbnail_url(tmp_path: Path) -> None:
    image = tmp_path / "x.png"
    image.write_bytes(b"\x89PNG")
    assert thumbnail_url(str(image)) == "data:image/png;base64,iVBORw=="
    assert thumbnail_url("data:image/png;base64,xx") == "data:image/png;base64,xx"
    with pytest.raises(ValueError, match=r"metadata_thumbnail: 'nothing.png' is neither"):
        thumbnail_url("nothing.png")


def test_base_files_are_named_and_hashed_and_ids_are_named(tmp_path: Path) -> None:
    (tmp_path / "base.safetensors").write_bytes(b"x")
    base = str(tmp_path / "base.safetensors")
    found = base_file_metadata(base, "someone/vae")
    assert found.keys() == {"ss_sd_model_name", "ss_sd_model_hash", "ss_new_sd_model_hash", "ss_vae_name"}
    assert (found["ss_sd_model_name"], found["ss_vae_name"]) == ("base.safetensors", "someone/vae")
    both = base_file_metadata(base, base)
    assert both["ss_vae_name"] == "base.safetensors"
    assert both["ss_new_vae_hash"] == both["ss_new_sd_model_hash"] == found["ss_new_sd_model_hash"]


def test_a_file_carries_all_of_it(tmp_path: Path) -> None:
    tensors = {"lora_unet_x.lora_down.weight": torch.zeros(2, 3)}
    everything = with_hashes(tensors, {**metadata(), **spec()})
    save_model(tmp_path / "x.safetensors", tensors, everything)
    assert read_header(tmp_path / "x.safetensors").metadata == everything
