"""The labels of kohya_ss's page, by our option, where they have words that ours do not: people search for them."""

from collections.abc import Mapping

from kohya_gui.kohya.legacy_keys import KOHYA_TABS, RECORDS

LABELS: Mapping[str, tuple[str, ...]] = {
    "ae": ("VAE Path",),
    "block_lr": ("Block LR",),
    "blockwise_fused_optimizers": ("Blockwise Fused Optimizer",),
    "bucket_no_upscale": ("Don't upscale bucket resolution",),
    "bucket_reso_steps": ("Bucket resolution steps",),
    "caption_dropout_rate": ("Rate of caption dropout",),
    "caption_extension": ("Caption file extension",),
    "clip_l": ("CLIP-L Path",),
    "color_aug": ("Color augmentation",),
    "compile": ("Torch Compile", "Dynamo backend"),
    "conv_dim": ("Convolution Rank (Dimension)",),
    "dataset_config": ("Dataset config file",),
    "dora_wd": ("DoRA Weight Decompose",),
    "flip_aug": ("Flip augmentation",),
    "full_bf16": ("Full bf16 training (experimental)",),
    "full_fp16": ("Full fp16 training (experimental)",),
    "gradient_accumulation_steps": ("Gradient accumulate steps",),
    "keep_tokens": ("Keep n tokens",),
    "learning_rate": ("Learning rate Unet",),
    "log_with": ("Logging",),
    "logging_dir": ("Logging directory",),
    "lr_scheduler": ("LR Scheduler",),
    "lr_scheduler_args": ("LR scheduler extra arguments",),
    "lr_warmup_steps": ("LR warmup (% of total steps)", "LR warmup steps (override)"),
    "max_bucket_reso": ("Maximum bucket resolution",),
    "max_data_loader_n_workers": ("Max num workers for DataLoader",),
    "max_train_epochs": ("Epoch", "Max train epoch"),
    "min_bucket_reso": ("Minimum bucket resolution",),
    "model_type": ("Base Model Type",),
    "network_dim": ("Network Rank (Dimension)",),
    "network_type": ("LoRA type", "LyCORIS"),
    "no_half_vae": ("No half VAE",),
    "num_cpu_threads_per_process": ("Number of CPU threads per core",),
    "num_machines": ("Number of machines",),
    "num_processes": ("Number of processes", "Multi GPU"),
    "optimizer_args": ("Optimizer extra arguments",),
    "output_dir": ("Output directory for trained model",),
    "output_name": ("Trained Model output name",),
    "pretrained_model_name_or_path": ("Pretrained model name or path",),
    "random_crop": ("Random crop instead of center crop",),
    "reg_data_dir": ("Regularisation directory",),
    "resolution": ("Max resolution", "Resolution (width,height)"),
    "resume": ("Resume from saved training state",),
    "save_model_as": ("Save trained model as",),
    "save_state": ("Save training state",),
    "save_state_on_train_end": ("Save training state at end of training",),
    "text_encoder_lr": ("Text Encoder learning rate",),
    "t5xxl": ("T5-XXL Path",),
    "t5xxl_max_token_length": ("T5-XXL Max Token Length",),
    "train_data_dir": ("Image folder (containing training images subfolders)",),
    "unet_lr": ("Unet learning rate",),
    "use_tucker": ("Use Tucker decomposition",),
    "v_parameterization": ("v_param",),
    "vae": ("VAE (Optional: Path to checkpoint of vae for training)",),
}


def kohya_names(tab: str, option: str) -> list[str]:
    """Return an option's names in kohya_ss in this tab: its labels, then its keys, where they differ from ours."""
    tabs = [KOHYA_TABS.get(tab), *(record.tabs.get(tab) for record in RECORDS.values())]
    keys = [key for each in tabs if each for key, name in each.renamed.items() if name == option and key != option]
    return list(dict.fromkeys([*LABELS.get(option, ()), *keys]))
