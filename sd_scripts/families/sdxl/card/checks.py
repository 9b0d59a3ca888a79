"""Rules between options that concern SDXL only; see `settings/checks/between.py`."""

from sd_scripts.options.full import FullOptions
from sd_scripts.options.spec import Findings, OptionValues

U_NET_BLOCKS = 23
"""Number of values in block_lr: one before the blocks, 9 down, 3 middle, 9 up, one after them."""


def block_lr_of_another_length(values: OptionValues) -> Findings:
    full = values[FullOptions]
    if len(full.block_rates) not in (0, U_NET_BLOCKS):
        yield "block_lr", f"has {len(full.block_rates)} values; give {U_NET_BLOCKS}"


PROBLEMS = (block_lr_of_another_length,)
