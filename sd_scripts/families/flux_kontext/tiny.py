"""FLUX.1 Kontext in miniature: the files of FLUX.1's miniature, and a grey control image for each of its images."""

from pathlib import Path

from sd_scripts.families.flux import tiny
from sd_scripts.families.flux_kontext.card import CARD
from sd_scripts.testing.miniature import Miniature, with_controls


def write_miniature(folder: Path) -> Miniature:
    """Create the model's files, tokenizers next to them, captioned images, and their control images."""
    return with_controls(tiny.write_miniature(folder), CARD.name, folder)
