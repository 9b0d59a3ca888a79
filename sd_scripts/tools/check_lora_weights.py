"""Look into a LoRA: kind, ranks, norms by block, singular values, and training settings.

python -m sd_scripts.tools.check_lora_weights lora.safetensors [--show_all_keys] [--json]
"""

import sys

from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.tools.lora_tools import InspectOptions, LoraInputOptions
from sd_scripts.tools.lora.command import Command, Given


def work(given: Given, reporter: Reporter) -> None:
    from sd_scripts.tools.lora.inspect import inspect  # torch is slow to import

    inspect(given, reporter)


COMMAND = Command(
    about="Look into a LoRA: kind, ranks, norms by block, singular values, and training settings.",
    groups=(LoraInputOptions, InspectOptions),
    work=work,
    inputs=("model",),
    positional="model",
)

if __name__ == "__main__":
    sys.exit(COMMAND.main(__file__))
