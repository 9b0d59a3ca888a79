"""Convert a LoRA to a different program's key names, or to a different precision."""

from __future__ import annotations

from pathlib import Path

from sd_scripts.formats.models.peft_header import without_alpha
from sd_scripts.formats.words import some
from sd_scripts.library.files.safetensors_io import PRECISIONS, save_model, with_hashes
from sd_scripts.networks.files.lora_names import with_names_of
from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.tools.lora_tools import ConvertOptions, PrecisionOptions
from sd_scripts.tools.lora.command import Given
from sd_scripts.tools.lora.factors import ranks_of
from sd_scripts.tools.lora.files import common_family, full_size_modules, in_precision, lora_metadata, open_lora


def convert(given: Given, reporter: Reporter) -> Path:
    """Write the converted LoRA. Raises ValueError, one sentence that names the option."""
    options = given[ConvertOptions]
    precision = given[PrecisionOptions].save_precision
    family = common_family("src_path", [options.src_path])
    reporter.phase("reading the LoRA")
    modules = full_size_modules(family)
    file = open_lora("src_path", options.src_path, modules, reporter.warn)
    reporter.phase("renaming layers")
    try:
        tensors = with_names_of(options.dst, file.tensors, modules)
    except ValueError as problem:
        raise ValueError(f"dst: {problem}") from None
    if not file.known:
        raise ValueError(f"src_path: '{options.src_path}' has no layer of {family.card.title}")
    if file.unknown:
        reporter.warn(f"src_path: {len(file.unknown)} layers are unknown and left out: {some(file.unknown)}")
    metadata = {"format": "pt", **lora_metadata(family, (), ranks_of(file.tensors)), **without_alpha(file.metadata)}
    if not any(key.endswith(".alpha") for key in tensors):  # the factors contain it
        metadata["ss_network_alpha"] = metadata["ss_network_dim"]
    reporter.phase("saving")
    ready = in_precision(tensors, PRECISIONS[precision] if precision else None)
    path = Path(options.dst_path)
    save_model(path, ready, with_hashes(ready, metadata))
    return path
