"""Where Anima's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubFile

REPO, LICENCE = "circlestone-labs/Anima", "CircleStone Labs Non-Commercial License v1.0"

FILES = (
    HubFile(
        repo=REPO,
        file="split_files/diffusion_models/anima-base-v1.0.safetensors",
        gigabytes=4.18,
        licence=LICENCE,
        about="Anima base, bf16",
    ),
    HubFile(
        option="qwen3",
        repo=REPO,
        file="split_files/text_encoders/qwen_3_06b_base.safetensors",
        gigabytes=1.19,
        licence="Apache-2.0",
        about="Qwen3-0.6B base, bf16",
    ),
    HubFile(
        option="vae",
        repo=REPO,
        file="split_files/vae/qwen_image_vae.safetensors",
        gigabytes=0.254,
        licence="Apache-2.0",
        about="VAE",
    ),
)
