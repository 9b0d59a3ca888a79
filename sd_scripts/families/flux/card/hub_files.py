"""Where FLUX.1's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubRepo

LICENCE = "FLUX.1-dev, non-commercial"
DEV = HubRepo("black-forest-labs/FLUX.1-dev", licence=LICENCE, gated=True)
SCHNELL = HubRepo("black-forest-labs/FLUX.1-schnell", gated=True)
ENCODERS = HubRepo("comfyanonymous/flux_text_encoders")
AUTOENCODER = HubRepo("Comfy-Org/Lumina_Image_2.0_Repackaged", folder="split_files/")
"""With the same file as FLUX.1's, without terms to accept."""

PARTS = (
    ENCODERS.file("clip_l.safetensors", 0.246, "CLIP-L", option="clip_l", licence="MIT"),
    ENCODERS.file("t5xxl_fp16.safetensors", 9.79, "T5-XXL, fp16", option="t5xxl"),
    ENCODERS.file("t5xxl_fp8_e4m3fn.safetensors", 4.89, "T5-XXL, fp8", option="t5xxl"),
    AUTOENCODER.file("vae/ae.safetensors", 0.335, "Autoencoder", option="ae"),
)
FILES = (
    DEV.file("flux1-dev.safetensors", 23.8, "FLUX.1 dev, bf16"),
    SCHNELL.file("flux1-schnell.safetensors", 23.8, "FLUX.1 schnell, bf16"),
    *PARTS,
)
