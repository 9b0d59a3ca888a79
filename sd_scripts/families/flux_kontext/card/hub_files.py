"""Where FLUX.1 Kontext's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubRepo
from sd_scripts.families.flux.card.hub_files import LICENCE, PARTS

MODELS = HubRepo("black-forest-labs/FLUX.1-Kontext-dev", licence=LICENCE, gated=True)

FILES = (MODELS.file("flux1-kontext-dev.safetensors", 23.8, "FLUX.1 Kontext dev, bf16"), *PARTS)
