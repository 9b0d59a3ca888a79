"""Where Chroma's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubRepo
from sd_scripts.families.flux.card.hub_files import PARTS

FILES = (
    HubRepo("lodestones/Chroma1-HD").file("Chroma1-HD.safetensors", 17.8, "Chroma1-HD, bf16"),
    HubRepo("lodestones/Chroma1-Base").file("Chroma1-Base.safetensors", 17.8, "Chroma1-Base, bf16"),
    *(part for part in PARTS if part.option != "clip_l"),
)
