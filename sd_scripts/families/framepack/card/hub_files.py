"""Where FramePack's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubRepo
from sd_scripts.families.hunyuan_video.card.hub_files import MODELS, PARTS

SIGLIP = HubRepo("Comfy-Org/sigclip_vision_384")

FILES = (
    MODELS.file("FramePackI2V_HY_bf16.safetensors", 25.7, "FramePack image to video, bf16"),
    *PARTS,
    SIGLIP.file("sigclip_vision_patch14_384.safetensors", 0.857, "SigLIP, fp16", option="image_encoder"),
)
