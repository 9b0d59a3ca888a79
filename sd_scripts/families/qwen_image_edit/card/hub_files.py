"""Where Qwen-Image-Edit's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubFile
from sd_scripts.families.qwen_image.card.hub_files import PARTS

REPO = "Comfy-Org/Qwen-Image-Edit_ComfyUI"

FILES = (
    HubFile(
        repo=REPO,
        file="split_files/diffusion_models/qwen_image_edit_2509_bf16.safetensors",
        gigabytes=40.9,
        licence="Apache-2.0",
        about="Qwen-Image-Edit-2509, bf16",
    ),
    HubFile(
        repo=REPO,
        file="split_files/diffusion_models/qwen_image_edit_bf16.safetensors",
        gigabytes=40.9,
        licence="Apache-2.0",
        about="Qwen-Image-Edit, bf16",
    ),
    *PARTS,
)
