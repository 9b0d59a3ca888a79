"""The training options that decide how latents are encoded ahead; prepare_buckets_latents.py takes them too."""

from sd_scripts.families.cards.registry import cards

VAE_FILES = tuple(sorted({card.files.vae_option for card in cards()} - {"vae"}))
ENCODING_OPTIONS = (
    *("vae", "no_half_vae", *VAE_FILES, "mixed_precision", "enable_bucket", "min_bucket_reso", "max_bucket_reso"),
    *("bucket_reso_steps", "bucket_no_upscale", "equal_token_buckets", "resize_interpolation", "flip_aug"),
    *("alpha_mask", "disable_mmap_load_safetensors"),
)
