"""Extract a LoRA from two models: the difference between them.

python -m sd_scripts.tools.extract_lora_from_models --model_org base.safetensors --model_tuned tuned.safetensors \
    --dim 32 --conv_dim 16 --save_to lora.safetensors
"""

import sys
from pathlib import Path

from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.tools.lora_tools import SAVING, ExtractOptions
from sd_scripts.tools.lora.command import Command, Given


def work(given: Given, reporter: Reporter) -> Path:
    from sd_scripts.tools.lora.extract import extract  # torch is slow to import

    return extract(given, reporter)


COMMAND = Command(
    about="Extract a LoRA from two models: the difference between them.",
    groups=(ExtractOptions, *SAVING),
    work=work,
    inputs=("model_org", "model_tuned"),
)

if __name__ == "__main__":
    sys.exit(COMMAND.main(__file__))
