"""Where FramePack's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubFile
from sd_scripts.families.hunyuan_video.card.hub_files import LICENCE, MODELS, PARTS

FILES = (
    HubFile(
        repo=MODELS,
        file="FramePackI2V_HY_bf16.safetensors",
        gigabytes=25.7,
        licence=LICENCE,
        about="FramePack image to video, bf16",
    ),
    *PARTS,
    HubFile(
        option="image_encoder",
        repo="Comfy-Org/sigclip_vision_384",
        file="sigclip_vision_patch14_384.safetensors",
        gigabytes=0.857,
        licence="Apache-2.0",
        about="SigLIP, fp16",
    ),
)
