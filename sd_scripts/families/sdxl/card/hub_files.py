"""Where SDXL's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubFile

FILES = (
    HubFile(
        repo="stabilityai/stable-diffusion-xl-base-1.0",
        file="sd_xl_base_1.0.safetensors",
        gigabytes=6.94,
        licence="OpenRAIL++-M",
        about="SDXL 1.0",
    ),
    HubFile(
        option="vae",
        repo="madebyollin/sdxl-vae-fp16-fix",
        file="sdxl_vae.safetensors",
        gigabytes=0.335,
        licence="MIT",
        about="VAE for half precision",
    ),
)
