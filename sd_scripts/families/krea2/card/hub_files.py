"""Where Krea 2's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubFile

REPO, LICENCE = "Comfy-Org/Krea-2", "Krea 2 Community License"

FILES = (
    HubFile(
        repo=REPO,
        file="diffusion_models/krea2_raw_bf16.safetensors",
        gigabytes=26.3,
        licence=LICENCE,
        about="Krea 2 Raw, which is trained",
    ),
    HubFile(
        repo=REPO,
        file="diffusion_models/krea2_turbo_bf16.safetensors",
        gigabytes=26.3,
        licence=LICENCE,
        about="Krea 2 Turbo, distilled to 8 steps",
    ),
    HubFile(
        option="qwen3_vl",
        repo=REPO,
        file="text_encoders/qwen3vl_4b_bf16.safetensors",
        gigabytes=8.88,
        licence="Apache-2.0",
        about="Qwen3-VL-4B, bf16",
    ),
    HubFile(
        option="vae",
        repo=REPO,
        file="vae/qwen_image_vae.safetensors",
        gigabytes=0.254,
        licence="Apache-2.0",
        about="Qwen-Image's VAE",
    ),
)
