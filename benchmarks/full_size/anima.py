"""Anima with random weights, and the runs that the benchmark times with it."""

from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.full_size.common.rows import image_rows, options_of
from benchmarks.full_size.common.weights import quieter, unknown, write_components
from sd_scripts.families.anima.adapter import AdapterParams
from sd_scripts.families.anima.card import CARD
from sd_scripts.families.anima.card.options import LONGEST
from sd_scripts.families.anima.full_size import modules as modules
from sd_scripts.families.anima.text import IDS, IDS_MASK, MASK, STATES

OPTIONS = options_of({})
ROWS = image_rows(26)


def predict(denoiser: nn.Module, width: int, height: int) -> Tensor:
    """Call the transformer and its adapter on the meta device for one image of this size in pixels."""
    there = unknown(1, LONGEST).bool()
    ids = torch.empty(1, LONGEST, dtype=torch.int64, device="meta")
    text = {STATES: unknown(1, LONGEST, AdapterParams().states_width), MASK: there, IDS: ids, IDS_MASK: there}
    predicted: Tensor = denoiser(unknown(1, 16, height // 8, width // 8), unknown(1), text)
    return predicted


def write_files(folder: Path) -> dict[str, Path]:
    """Write the model's files, 6 GB in bf16; return them by the options that name them."""
    return write_components(CARD, modules(), folder, quieter("modulation"))
