"""Where FLUX.2 klein 4B's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubRepo

REPO = HubRepo("Comfy-Org/Flux-2-Klein-4B", folder="split_files/")

FILES = (
    REPO.file("diffusion_models/flux-2-klein-base-4b.safetensors", 7.75, "FLUX.2 klein base 4B, which is trained"),
    REPO.file("diffusion_models/flux-2-klein-4b.safetensors", 7.75, "FLUX.2 klein 4B, distilled to 4 steps"),
    REPO.file("text_encoders/qwen_3_4b.safetensors", 8.04, "Qwen3-4B, bf16", option="qwen3"),
    REPO.file("vae/flux2-vae.safetensors", 0.34, "FLUX.2's autoencoder", option="vae"),
)
