"""Change the metadata of a .safetensors file; its weights are copied unchanged.

python -m sd_scripts.tools.edit_metadata --model lora.safetensors --save_to edited.safetensors \
    --set "modelspec.title=My style" "modelspec.trigger_phrase=sks" --remove ss_tag_frequency "ss_dataset*"
"""

import sys
from pathlib import Path

from sd_scripts.formats.models.peft_header import without_alpha
from sd_scripts.formats.models.safetensors_header import SAFETENSORS, read_header
from sd_scripts.formats.models.safetensors_metadata import edited, write_with_metadata
from sd_scripts.formats.words import some
from sd_scripts.runs.reporter import Reporter
from sd_scripts.runs.tool import start_phase
from sd_scripts.settings.tools.lora_tools import EditMetadataOptions, LoraInputOptions, OutputOptions
from sd_scripts.tools.lora.command import Command, Given


def work(given: Given, reporter: Reporter) -> Path:
    path = Path(given[LoraInputOptions].model)
    save_to = Path(given[OutputOptions].save_to)
    options = given[EditMetadataOptions]
    if path.suffix not in SAFETENSORS:
        raise ValueError(f"model: '{path}' has no metadata; choose a .safetensors file")
    try:
        metadata = read_header(path).metadata
    except ValueError as problem:
        raise ValueError(f"model: {problem}") from None
    changes = {key.strip(): text for key, _, text in (pair.partition("=") for pair in options.set)}
    missing = [name for name in options.remove if not name.endswith("*") and name not in metadata]
    if missing:
        reporter.warn(f"remove: entry not found: {missing[0]}")
    result = edited(metadata, changes, options.remove)
    if gone := sorted(metadata.keys() - result.keys() - without_alpha(metadata).keys()):
        reporter.warn(
            f"remove: {some(gone)} states the alpha of layers; keep it unless the file has alpha tensors, or the LoRA "
            "will be stronger or weaker"
        )
    progress = start_phase(reporter, "copying megabytes")
    write_with_metadata(path, save_to, result, progress)
    return save_to


COMMAND = Command(
    about="Change the metadata of a .safetensors file; its weights are copied unchanged.",
    groups=(LoraInputOptions, EditMetadataOptions, OutputOptions),
    work=work,
    inputs=("model",),
    may_replace=True,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main(__file__))
