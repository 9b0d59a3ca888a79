"""Print the metadata of a .safetensors file as JSON.

python -m sd_scripts.tools.show_metadata --model lora.safetensors
"""

import json
import sys
from pathlib import Path

from sd_scripts.formats.models.safetensors_header import read_header
from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.tools.lora_tools import LoraInputOptions
from sd_scripts.tools.lora.command import Command, Given


def work(given: Given, reporter: Reporter) -> None:
    try:
        metadata = read_header(Path(given[LoraInputOptions].model)).metadata
    except ValueError as problem:
        raise ValueError(f"model: {problem}") from None
    text = json.dumps(dict(sorted(metadata.items())), indent=4, ensure_ascii=False)
    shown = (each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)
    print("".join(shown))  # a terminal obeys control characters


COMMAND = Command(
    about="Print the metadata of a .safetensors file as JSON.",
    groups=(LoraInputOptions,),
    work=work,
    inputs=("model",),
    positional="model",
)

if __name__ == "__main__":
    sys.exit(COMMAND.main(__file__))
