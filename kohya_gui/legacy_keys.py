"""The training tabs of kohya_ss as data: their keys, our option for each, and the default of a missing one."""

from dataclasses import replace
from typing import Any

from sd_scripts.families.kohya import KohyaFamily, KohyaTab
from sd_scripts.families.kohya import key_names as _names
from sd_scripts.families.registry import cards

RECORDS: dict[str, KohyaFamily] = {card.name: card.kohya for card in cards() if card.kohya}
"""What the families say of themselves in these files, in the order of the page."""

FAMILIES = {
    **{key: name for name, record in RECORDS.items() for key in record.checkboxes},
    "sd3_checkbox": "sd3",
    "hunyuan_image_checkbox": "hunyuan_image",
    "anima_checkbox": "anima",
    "lumina_checkbox": "lumina",
    "v2": "sd2",
}
"""Model checkbox -> family; the first one that is on wins, none means SD 1.5."""

TITLES = {"sd3": "SD 3", "hunyuan_image": "HunyuanImage", "anima": "Anima", "lumina": "Lumina"}
TITLES |= {"sd2": "Stable Diffusion 2", "sd15": "Stable Diffusion 1.5"}
"""Of models that kohya_ss trains but no script here does."""


def record_of(family: str) -> KohyaFamily:
    """Return what a family says of itself in these files; nothing for a model that no script here trains."""
    return RECORDS.get(family, KohyaFamily())


SAME = _names(
    """
    pretrained_model_name_or_path vae v_parameterization clip_skip max_token_length train_data_dir
    reg_data_dir dataset_config train_batch_size max_data_loader_n_workers persistent_data_loader_workers
    prior_loss_weight enable_bucket min_bucket_reso max_bucket_reso bucket_reso_steps bucket_no_upscale
    caption_extension shuffle_caption keep_tokens caption_dropout_rate caption_dropout_every_n_epochs
    weighted_captions color_aug flip_aug random_crop masked_loss cache_latents cache_latents_to_disk
    vae_batch_size skip_cache_check max_train_steps max_train_epochs seed gradient_accumulation_steps
    gradient_checkpointing mixed_precision full_fp16 full_bf16 fp8_base mem_eff_attn learning_rate
    optimizer_args max_grad_norm lr_scheduler lr_scheduler_num_cycles lr_scheduler_power lr_scheduler_type
    lr_scheduler_args noise_offset noise_offset_random_strength adaptive_noise_scale multires_noise_iterations
    multires_noise_discount ip_noise_gamma ip_noise_gamma_random_strength min_timestep max_timestep loss_type
    huber_schedule huber_c huber_scale min_snr_gamma scale_v_pred_loss_like_noise_pred v_pred_like_loss
    debiased_estimation_loss save_state save_state_on_train_end save_last_n_epochs_state save_last_n_steps_state
    resume output_dir output_name save_model_as save_precision save_every_n_epochs save_every_n_steps
    save_last_n_epochs save_last_n_steps sample_every_n_steps sample_every_n_epochs sample_sampler
    metadata_title metadata_author metadata_description metadata_license metadata_tags
    logging_dir log_with log_tracker_name wandb_run_name log_tracker_config wandb_api_key log_config
    huggingface_token huggingface_repo_id huggingface_repo_type huggingface_path_in_repo
    huggingface_repo_visibility save_state_to_huggingface resume_from_huggingface async_upload num_processes
    num_machines num_cpu_threads_per_process gpu_ids main_process_port multi_gpu extra_accelerate_launch_args
    """
)
RENAMED = {"optimizer": "optimizer_type", "max_resolution": "resolution"}
DEFAULTS: dict[str, Any] = {
    "output_name": "last",
    "save_precision": "fp16",
    "max_resolution": "512,512",
    "lr_scheduler": "cosine",
    "lr_warmup": 10,
    "epoch": 1,
    "save_every_n_epochs": 1,
    "cache_latents": True,
    "caption_extension": ".txt",
    "enable_bucket": True,
    "max_bucket_reso": 2048,
    "bucket_no_upscale": True,
    "max_train_steps": 1600,
    "optimizer": "AdamW8bit",
    "mixed_precision": "fp16",
    "max_data_loader_n_workers": 0,
    "max_timestep": 1000,
    "sample_sampler": "euler_a",
    "noise_offset_type": "Original",
}
DROPPED = _names(
    """
    epoch lr_warmup noise_offset_type xformers additional_parameters use_8bit_adam sample_prompts
    model_list lowvram save_as_bool save_as file_path headless print_only use_wandb no_token_padding
    stop_text_encoder_training_pct dynamo_mode dynamo_use_fullgraph dynamo_use_dynamic clip_g
    clip_g_dropout_rate split_mode enable_all_linear logit_mean logit_std mode_scale pos_emb_random_crop_rate
    save_clip save_t5xxl t5xxl_device t5xxl_dtype weighting_scheme show_timesteps_resolution
    """
)
"""Keys that are no option: read together with others; about the page; gone from kohya_ss too; accelerate's dynamo
settings, replaced by compile; and those of other models."""
CANNOT = {
    "train_inpainting": "inpainting models are not supported",
    "show_timesteps": "not supported; sd-scripts only plots the timesteps with it, here the training runs",
}

LORA = KohyaTab(
    marks=_names("LoRA_type network_dim network_alpha unet_lr text_encoder_lr lora_network_weights"),
    same=SAME
    | _names("network_dim network_alpha network_dropout network_weights dim_from_weights scale_weight_norms")
    | _names("highvram training_comment"),
    renamed={**RENAMED, "lora_network_weights": "network_weights"},
    defaults={**DEFAULTS, "learning_rate": 1e-4, "text_encoder_lr": 1e-4, "unet_lr": 1e-4, "network_dim": 8},
    dropped=DROPPED | _names("conv_dims conv_alphas"),
    cannot={
        **CANNOT,
        "stop_text_encoder_training": "text encoders train to the end; set network_train_unet_only to freeze them",
    },
)
DREAMBOOTH = KohyaTab(
    marks=_names("learning_rate_te learning_rate_te1 blockwise_fused_optimizers"),
    same=SAME | _names("disable_mmap_load_safetensors"),
    renamed=RENAMED,
    defaults={**DEFAULTS, **dict.fromkeys(("learning_rate", "learning_rate_te1", "learning_rate_te2"), 1e-5)},
    # clip_l and t5xxl are those of SD 3 in this tab
    dropped=DROPPED | _names("learning_rate_te clip_l t5xxl"),
    cannot={
        **CANNOT,
        "stop_text_encoder_training": "text encoders train to the end; turn train_text_encoder off to freeze them",
    },
)
FINETUNE = replace(
    DREAMBOOTH,
    marks=_names("image_folder train_dir dataset_repeats latent_metadata_filename create_buckets"),
    same=DREAMBOOTH.same | _names("dataset_repeats"),
    renamed={**RENAMED, "image_folder": "train_data_dir"},
    defaults={
        **DREAMBOOTH.defaults,
        "lr_scheduler": "constant",
        "lr_warmup": 0,
        "max_bucket_reso": 1024,
        "dataset_repeats": 40,
        "train_text_encoder": True,
        "caption_metadata_filename": "meta_cap.json",
        "latent_metadata_filename": "meta_lat.json",
        "use_latent_files": "Yes",
        "create_caption": True,
        "create_buckets": True,
    },
    dropped=DREAMBOOTH.dropped
    | _names("train_dir caption_metadata_filename latent_metadata_filename use_latent_files")
    | _names("create_caption create_buckets generate_caption_database generate_image_buckets batch_size full_path"),
    cannot=CANNOT,
)
KOHYA_TABS = {"lora": LORA, "finetune": FINETUNE, "dreambooth": DREAMBOOTH}
"""By the name of our tab; the first whose marks a file has wrote it."""


def own_keys(tab: str, family: str) -> KohyaTab:
    """Return the keys of a tab that have a meaning in files for the family only."""
    return record_of(family).tabs.get(tab, KohyaTab())


ZERO_IS_UNSET = (
    *("seed", "vae_batch_size", "network_dropout", "noise_offset", "adaptive_noise_scale", "ip_noise_gamma"),
    *("min_timestep", "max_timestep"),
)
"""Sliders where 0 means unset. Where 0 is a value, as in max_grad_norm, it is kept."""

PREFIXES = ("sd3_", "hunyuan_", "anima_", "lumina_", *(p for record in RECORDS.values() for p in record.prefixes))
"""Prefixes of keys that belong to one model."""
