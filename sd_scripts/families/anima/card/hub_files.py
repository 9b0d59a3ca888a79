"""Where Anima's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubRepo

LICENCE = "CircleStone Labs Non-Commercial License v1.0"
REPO = HubRepo("circlestone-labs/Anima", folder="split_files/")

FILES = (
    REPO.file("diffusion_models/anima-base-v1.0.safetensors", 4.18, "Anima base, bf16", licence=LICENCE),
    REPO.file("text_encoders/qwen_3_06b_base.safetensors", 1.19, "Qwen3-0.6B base, bf16", option="qwen3"),
    REPO.file("vae/qwen_image_vae.safetensors", 0.254, "VAE", option="vae"),
)
