"""Where SDXL's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubRepo

MODELS = HubRepo("stabilityai/stable-diffusion-xl-base-1.0", licence="OpenRAIL++-M")
VAES = HubRepo("madebyollin/sdxl-vae-fp16-fix", licence="MIT")

FILES = (
    MODELS.file("sd_xl_base_1.0.safetensors", 6.94, "SDXL 1.0"),
    VAES.file("sdxl_vae.safetensors", 0.335, "VAE for half precision", option="vae"),
)
