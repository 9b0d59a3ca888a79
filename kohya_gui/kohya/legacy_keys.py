"""The training tabs of kohya_ss as data: their keys, our option for each, and the default of a missing one."""

from dataclasses import replace
from typing import Any

from sd_scripts.families.cards.kohya import KohyaFamily, KohyaTab
from sd_scripts.families.cards.kohya import key_names as _names
from sd_scripts.families.cards.registry import cards
from sd_scripts.options.training import ALWAYS_SDPA

RECORDS: dict[str, KohyaFamily] = {card.name: card.page.kohya for card in cards() if card.page.kohya}
"""Family -> its keys in these files, in the order of the page."""

FAMILIES = {
    **{key: name for name, record in RECORDS.items() for key in record.checkboxes},
    "sd3_checkbox": "sd3",
    "hunyuan_image_checkbox": "hunyuan_image",
    "lumina_checkbox": "lumina",
    "v2": "sd2",
}
"""Model checkbox -> family; the first one that is on wins, none means SD 1.5."""

TITLES = {"sd3": "SD 3", "hunyuan_image": "HunyuanImage", "lumina": "Lumina"}
TITLES |= {"sd2": "Stable Diffusion 2", "sd15": "Stable Diffusion 1.5"}
"""Titles of models that kohya_ss trains but no script here does."""


def record_of(family: str) -> KohyaFamily:
    """Return a family's keys in these files; none for a model that no script here trains."""
    return RECORDS.get(family, KohyaFamily())


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
COMBINED = _names("epoch lr_warmup noise_offset_type additional_parameters use_8bit_adam sample_prompts use_wandb")
"""Keys that are read together with others."""
OF_PAGE = _names("model_list lowvram save_as_bool save_as file_path headless print_only show_timesteps_resolution")
"""Keys about kohya_ss's page."""
COMBINED_METADATA = _names("train_dir caption_metadata_filename latent_metadata_filename use_latent_files")
PREPARATION = _names(
    "create_caption create_buckets generate_caption_database generate_image_buckets batch_size full_path"
)
"""Keys of the metadata file, and of preparing it."""
DROPPED = (
    COMBINED
    | OF_PAGE
    | _names(
        """
        xformers no_token_padding stop_text_encoder_training_pct dynamo_mode dynamo_use_fullgraph dynamo_use_dynamic
        clip_g clip_g_dropout_rate split_mode enable_all_linear logit_mean logit_std mode_scale
        pos_emb_random_crop_rate save_clip save_t5xxl t5xxl_device t5xxl_dtype weighting_scheme
        """
    )
)
"""Keys that are not options; others are options that have no effect here, or that other models have."""
NO_EFFECT = {
    "xformers": ALWAYS_SDPA,
    "no_token_padding": "not supported; captions are padded as the text encoders were trained",
    "stop_text_encoder_training_pct": "text encoders train to the end",
    "dynamo_mode": "has no effect; set compile_mode",
    "dynamo_use_fullgraph": "has no effect; set compile_fullgraph",
    "dynamo_use_dynamic": "has no effect; set compile_dynamic",
}
"""Keys without effect for any model, and why."""
USUAL = {
    **{"xformers": "sdpa", "dynamo_mode": "default", "learning_rate_te": 1e-5, "train_text_encoder": True},
    **{"learning_rate_te1": 1e-5, "learning_rate_te2": 1e-5},
    **{"logit_std": 1.0, "mode_scale": 1.29, "t5xxl_dtype": "bf16", "sd3_text_encoder_batch_size": 1},
    **{"weighting_scheme": "logit_normal", "hunyuan_discrete_flow_shift": 5.0, "hunyuan_model_prediction_type": "raw"},
    **{"hunyuan_timestep_sampling": "sigma", "hunyuan_sigmoid_scale": 1.0, "hunyuan_attn_mode": "torch"},
    **{"lumina_discrete_flow_shift": 6.0, "lumina_model_prediction_type": "raw", "lumina_timestep_sampling": "shift"},
    **{"lumina_sigmoid_scale": 1.0, "lumina_gemma2_max_token_length": 256},
    **{name: value for record in RECORDS.values() for name, value in {**record.lora_fields, **record.usual}.items()},
}
"""Values of such keys, and of other models' keys, in every file that kohya_ss writes; the others are off there."""
CANNOT = {
    "train_inpainting": "inpainting models are not supported",
    "show_timesteps": "not supported; sd-scripts only plots the timesteps with it, here the training runs",
}

LORA = KohyaTab(
    marks=_names("LoRA_type network_dim network_alpha unet_lr text_encoder_lr lora_network_weights"),
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
    renamed=RENAMED,
    defaults={**DEFAULTS, **dict.fromkeys(("learning_rate", "learning_rate_te1", "learning_rate_te2"), 1e-5)},
    # clip_l and t5xxl belong to SD 3 in this tab
    dropped=DROPPED | _names("learning_rate_te clip_l t5xxl"),
    cannot={
        **CANNOT,
        "stop_text_encoder_training": "text encoders train to the end; turn train_text_encoder off to freeze them",
    },
)
FINETUNE = replace(
    DREAMBOOTH,
    marks=_names("image_folder train_dir dataset_repeats latent_metadata_filename create_buckets"),
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
    dropped=DREAMBOOTH.dropped | COMBINED_METADATA | PREPARATION,
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

PREFIXES = ("sd3_", "hunyuan_", "lumina_", *(p for record in RECORDS.values() for p in record.prefixes))
"""Prefixes of keys that belong to one model."""
