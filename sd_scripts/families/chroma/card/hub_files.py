"""Where Chroma's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubFile
from sd_scripts.families.flux.card.hub_files import PARTS

FILES = (
    HubFile(
        repo="lodestones/Chroma1-HD",
        file="Chroma1-HD.safetensors",
        gigabytes=17.8,
        licence="Apache-2.0",
        about="Chroma1-HD, bf16",
    ),
    HubFile(
        repo="lodestones/Chroma1-Base",
        file="Chroma1-Base.safetensors",
        gigabytes=17.8,
        licence="Apache-2.0",
        about="Chroma1-Base, bf16",
    ),
    *(part for part in PARTS if part.option != "clip_l"),
)
