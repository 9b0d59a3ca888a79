"""Where FLUX.1's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubFile

ENCODERS = "comfyanonymous/flux_text_encoders"
LICENCE = "FLUX.1-dev, non-commercial"

PARTS = (
    HubFile(
        option="clip_l",
        repo=ENCODERS,
        file="clip_l.safetensors",
        gigabytes=0.246,
        licence="MIT",
        about="CLIP-L",
    ),
    HubFile(
        option="t5xxl",
        repo=ENCODERS,
        file="t5xxl_fp16.safetensors",
        gigabytes=9.79,
        licence="Apache-2.0",
        about="T5-XXL, fp16",
    ),
    HubFile(
        option="t5xxl",
        repo=ENCODERS,
        file="t5xxl_fp8_e4m3fn.safetensors",
        gigabytes=4.89,
        licence="Apache-2.0",
        about="T5-XXL, fp8",
    ),
    HubFile(
        option="ae",
        repo="Comfy-Org/Lumina_Image_2.0_Repackaged",  # the same file as FLUX.1's, without terms to accept
        file="split_files/vae/ae.safetensors",
        gigabytes=0.335,
        licence="Apache-2.0",
        about="Autoencoder",
    ),
)
FILES = (
    HubFile(
        repo="black-forest-labs/FLUX.1-dev",
        file="flux1-dev.safetensors",
        gigabytes=23.8,
        licence=LICENCE,
        about="FLUX.1 dev, bf16",
        gated=True,
    ),
    HubFile(
        repo="black-forest-labs/FLUX.1-schnell",
        file="flux1-schnell.safetensors",
        gigabytes=23.8,
        licence="Apache-2.0",
        about="FLUX.1 schnell, bf16",
        gated=True,
    ),
    *PARTS,
)
