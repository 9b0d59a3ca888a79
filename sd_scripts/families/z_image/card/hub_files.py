"""Where Z-Image's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubFile

REPO = "Comfy-Org/z_image"

FILES = (
    HubFile(
        repo=REPO,
        file="split_files/diffusion_models/z_image_bf16.safetensors",
        gigabytes=12.3,
        licence="Apache-2.0",
        about="Z-Image base, which is trained",
    ),
    HubFile(
        repo="Comfy-Org/z_image_turbo",
        file="split_files/diffusion_models/z_image_turbo_bf16.safetensors",
        gigabytes=12.3,
        licence="Apache-2.0",
        about="Z-Image Turbo, distilled to 8 steps",
    ),
    HubFile(
        option="qwen3",
        repo=REPO,
        file="split_files/text_encoders/qwen_3_4b.safetensors",
        gigabytes=8.04,
        licence="Apache-2.0",
        about="Qwen3-4B, bf16",
    ),
    HubFile(
        option="vae",
        repo=REPO,
        file="split_files/vae/ae.safetensors",
        gigabytes=0.335,
        licence="Apache-2.0",
        about="autoencoder",
    ),
    HubFile(
        option="training_adapter",
        repo="ostris/zimage_turbo_training_adapter",
        file="zimage_turbo_training_adapter_v2.safetensors",
        gigabytes=0.34,
        licence="Apache-2.0",
        about="to train on Turbo, for short trainings",
    ),
)
