"""Where Z-Image's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubRepo

REPO = HubRepo("Comfy-Org/z_image", folder="split_files/")
TURBO = HubRepo("Comfy-Org/z_image_turbo", folder="split_files/")
ADAPTERS = HubRepo("ostris/zimage_turbo_training_adapter")

FILES = (
    REPO.file("diffusion_models/z_image_bf16.safetensors", 12.3, "Z-Image base, which is trained"),
    TURBO.file("diffusion_models/z_image_turbo_bf16.safetensors", 12.3, "Z-Image Turbo, distilled to 8 steps"),
    REPO.file("text_encoders/qwen_3_4b.safetensors", 8.04, "Qwen3-4B, bf16", option="qwen3"),
    REPO.file("vae/ae.safetensors", 0.335, "autoencoder", option="vae"),
    ADAPTERS.file(
        "zimage_turbo_training_adapter_v2.safetensors",
        0.34,
        "to train on Turbo, for short trainings",
        option="training_adapter",
    ),
)
