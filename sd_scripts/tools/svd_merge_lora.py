"""Merge LoRAs into one with a rank you choose: the best approximation of the sum of their effects.

python -m sd_scripts.tools.svd_merge_lora --models a.safetensors b.safetensors --ratios 0.8 0.5 --new_rank 32 \
    --save_to merged.safetensors
"""

import sys
from pathlib import Path

from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.tools.lora_tools import SAVING, MergedOptions, SvdMergeOptions
from sd_scripts.tools.lora.command import Command, Given


def work(given: Given, reporter: Reporter) -> Path:
    from sd_scripts.tools.lora.merge_loras import merge_by_svd  # torch is slow to import

    return merge_by_svd(given, reporter)


COMMAND = Command(
    about="Merge LoRAs into one with a rank you choose.",
    groups=(MergedOptions, SvdMergeOptions, *SAVING),
    work=work,
    inputs=("models",),
)

if __name__ == "__main__":
    sys.exit(COMMAND.main(__file__))
