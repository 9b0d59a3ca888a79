"""Where Wan 2.2 5B's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubFile
from sd_scripts.families.wan.card.hub_files import ENCODER, WAN_22

FILES = (
    HubFile(
        repo=WAN_22,
        file="split_files/diffusion_models/wan2.2_ti2v_5B_fp16.safetensors",
        gigabytes=10.0,
        licence="Apache-2.0",
        about="Wan 2.2 TI2V 5B, fp16",
    ),
    ENCODER,
    HubFile(
        option="vae",
        repo=WAN_22,
        file="split_files/vae/wan2.2_vae.safetensors",
        gigabytes=1.41,
        licence="Apache-2.0",
        about="Wan 2.2 VAE",
    ),
)
