"""Where Qwen-Image's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubFile

REPO = "Comfy-Org/Qwen-Image_ComfyUI"

PARTS = (
    HubFile(
        option="text_encoder",
        repo=REPO,
        file="split_files/text_encoders/qwen_2.5_vl_7b.safetensors",
        gigabytes=16.6,
        licence="Apache-2.0",
        about="Qwen2.5-VL-7B, bf16",
    ),
    HubFile(
        option="text_encoder",
        repo=REPO,
        file="split_files/text_encoders/qwen_2.5_vl_7b_fp8_scaled.safetensors",
        gigabytes=9.38,
        licence="Apache-2.0",
        about="Qwen2.5-VL-7B, scaled fp8",
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
FILES = (
    HubFile(
        repo=REPO,
        file="split_files/diffusion_models/qwen_image_bf16.safetensors",
        gigabytes=40.9,
        licence="Apache-2.0",
        about="Qwen-Image, bf16",
    ),
    *PARTS,
)
