"""Where Qwen-Image's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubRepo

REPO = HubRepo("Comfy-Org/Qwen-Image_ComfyUI", folder="split_files/")

PARTS = (
    REPO.file("text_encoders/qwen_2.5_vl_7b.safetensors", 16.6, "Qwen2.5-VL-7B, bf16", option="text_encoder"),
    REPO.file(
        "text_encoders/qwen_2.5_vl_7b_fp8_scaled.safetensors", 9.38, "Qwen2.5-VL-7B, scaled fp8", option="text_encoder"
    ),
    REPO.file("vae/qwen_image_vae.safetensors", 0.254, "VAE", option="vae"),
)
FILES = (REPO.file("diffusion_models/qwen_image_bf16.safetensors", 40.9, "Qwen-Image, bf16"), *PARTS)
