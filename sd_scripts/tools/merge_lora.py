"""Merge LoRAs into a model, or with each other if no model is given.

python -m sd_scripts.tools.merge_lora --base_model model.safetensors --models a.safetensors b.safetensors \
    --ratios 0.8 0.5 --save_to merged.safetensors
"""

import sys
from pathlib import Path

from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.tools.lora_tools import (
    ENCODER_FILES,
    SAVING,
    BaseModelOptions,
    EncoderFileOptions,
    MergedOptions,
    WeightedMergeOptions,
)
from sd_scripts.tools.lora.command import Command, Given


def work(given: Given, reporter: Reporter) -> Path:
    if given[BaseModelOptions].base_model:
        from sd_scripts.tools.lora.merge_model import merge_into_model  # torch is slow to import

        return merge_into_model(given, reporter)
    from sd_scripts.tools.lora.merge_loras import merge_by_weight

    return merge_by_weight(given, reporter)


COMMAND = Command(
    about="Merge LoRAs into a model, or with each other if no model is given.",
    groups=(BaseModelOptions, EncoderFileOptions, MergedOptions, WeightedMergeOptions, *SAVING),
    work=work,
    inputs=("base_model", "models", *ENCODER_FILES),
)

if __name__ == "__main__":
    sys.exit(COMMAND.main(__file__))
