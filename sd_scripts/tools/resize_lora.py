"""Resize a LoRA to a lower rank, or each layer to the ranks that it needs.

python -m sd_scripts.tools.resize_lora --model lora.safetensors --save_to small.safetensors --new_rank 16 \
    --dynamic_method sv_fro --dynamic_param 0.9
"""

import sys
from pathlib import Path

from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.tools.lora_tools import LoraInputOptions, OutputOptions, PrecisionOptions, ResizeOptions
from sd_scripts.tools.lora.command import Command, Given


def work(given: Given, reporter: Reporter) -> Path:
    from sd_scripts.tools.lora.resize import resize  # torch is slow to import

    return resize(given, reporter)


COMMAND = Command(
    about="Resize a LoRA to a lower rank, or each layer to the ranks that it needs.",
    groups=(LoraInputOptions, ResizeOptions, OutputOptions, PrecisionOptions),
    work=work,
    inputs=("model",),
)

if __name__ == "__main__":
    sys.exit(COMMAND.main(__file__))
