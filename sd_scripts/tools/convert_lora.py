"""Convert a LoRA between the key names of sd-scripts, diffusers (PEFT), ComfyUI and ai-toolkit, or its precision.

python -m sd_scripts.tools.convert_lora --src_path lora.safetensors --dst diffusers --dst_path converted.safetensors
"""

import sys
from pathlib import Path

from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.tools.lora_tools import ConvertOptions, PrecisionOptions
from sd_scripts.tools.lora.command import Command, Given


def work(given: Given, reporter: Reporter) -> Path:
    from sd_scripts.tools.lora.convert import convert  # torch is slow to import

    return convert(given, reporter)


COMMAND = Command(
    about="Convert a LoRA to a different program's key names, or to a different precision.",
    groups=(ConvertOptions, PrecisionOptions),
    work=work,
    inputs=("src_path",),
)

if __name__ == "__main__":
    sys.exit(COMMAND.main(__file__))
