"""Where Qwen-Image-Edit's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubRepo
from sd_scripts.families.qwen_image.card.hub_files import PARTS

REPO = HubRepo("Comfy-Org/Qwen-Image-Edit_ComfyUI", folder="split_files/diffusion_models/")

FILES = (
    REPO.file("qwen_image_edit_2509_bf16.safetensors", 40.9, "Qwen-Image-Edit-2509, bf16"),
    REPO.file("qwen_image_edit_bf16.safetensors", 40.9, "Qwen-Image-Edit, bf16"),
    *PARTS,
)
