"""Where Krea 2's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubRepo

LICENCE = "Krea 2 Community License"
REPO = HubRepo("Comfy-Org/Krea-2")

FILES = (
    REPO.file("diffusion_models/krea2_raw_bf16.safetensors", 26.3, "Krea 2 Raw, which is trained", licence=LICENCE),
    REPO.file(
        "diffusion_models/krea2_turbo_bf16.safetensors", 26.3, "Krea 2 Turbo, distilled to 8 steps", licence=LICENCE
    ),
    REPO.file("text_encoders/qwen3vl_4b_bf16.safetensors", 8.88, "Qwen3-VL-4B, bf16", option="qwen3_vl"),
    REPO.file("vae/qwen_image_vae.safetensors", 0.254, "Qwen-Image's VAE", option="vae"),
)
