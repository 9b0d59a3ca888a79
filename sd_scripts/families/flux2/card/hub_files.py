"""Where FLUX.2 klein 4B's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubFile

REPO = "Comfy-Org/Flux-2-Klein-4B"

FILES = (
    HubFile(
        repo=REPO,
        file="split_files/diffusion_models/flux-2-klein-base-4b.safetensors",
        gigabytes=7.75,
        licence="Apache-2.0",
        about="FLUX.2 klein base 4B, which is trained",
    ),
    HubFile(
        repo=REPO,
        file="split_files/diffusion_models/flux-2-klein-4b.safetensors",
        gigabytes=7.75,
        licence="Apache-2.0",
        about="FLUX.2 klein 4B, distilled to 4 steps",
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
        file="split_files/vae/flux2-vae.safetensors",
        gigabytes=0.34,
        licence="Apache-2.0",
        about="FLUX.2's autoencoder",
    ),
)
