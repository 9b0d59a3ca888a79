"""Where FLUX.1 Kontext's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubFile
from sd_scripts.families.flux.card.hub_files import LICENCE, PARTS

FILES = (
    HubFile(
        repo="black-forest-labs/FLUX.1-Kontext-dev",
        file="flux1-kontext-dev.safetensors",
        gigabytes=23.8,
        licence=LICENCE,
        about="FLUX.1 Kontext dev, bf16",
        gated=True,
    ),
    *PARTS,
)
