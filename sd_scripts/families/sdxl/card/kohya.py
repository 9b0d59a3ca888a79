"""SDXL in the configuration files of kohya_ss."""

from sd_scripts.families.cards.kohya import KohyaFamily, KohyaTab, key_names

RENAMED = {
    "sdxl_no_half_vae": "no_half_vae",
    "sdxl_cache_text_encoder_outputs": "cache_text_encoder_outputs",
}
FULL = key_names("learning_rate_te1 learning_rate_te2 fused_backward_pass fused_optimizer_groups")

KOHYA = KohyaFamily(
    checkboxes=("sdxl", "sdxl_checkbox"),
    prefixes=("sdxl_",),
    tabs={
        "lora": KohyaTab(renamed=RENAMED),
        "dreambooth": KohyaTab(same=FULL, renamed=RENAMED),
        "finetune": KohyaTab(
            same=FULL | key_names("train_text_encoder block_lr"),
            renamed=RENAMED,
            marks=key_names("sdxl_checkbox"),
        ),
    },
)
