"""Rules between options that concern Anima only; see `settings/checks/between.py`."""

from sd_scripts.families.anima.card.options import PARTS
from sd_scripts.options.full import FullOptions
from sd_scripts.options.spec import Findings, OptionValues


def block_lr_of_another_length(values: OptionValues) -> Findings:
    full = values[FullOptions]
    if len(full.block_rates) not in (0, len(PARTS) + 1):
        parts = "self-attention, cross-attention, MLPs, modulations, the LLM adapter and everything else"
        yield "block_lr", f"has {len(full.block_rates)} values; give {len(PARTS) + 1}, of {parts}"


PROBLEMS = (block_lr_of_another_length,)
