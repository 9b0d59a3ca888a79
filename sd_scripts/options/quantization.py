"""In which format a run holds its frozen weights, and how many bytes that takes."""

from collections.abc import Mapping

from sd_scripts.families.registry import card_of
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.network import NetworkOptions
from sd_scripts.options.settings import Settings
from sd_scripts.options.training import TrainingOptions

BYTES: Mapping[str, float] = {"fp8": 1.0, "int8": 1.0, "int8_weight_only": 1.0, "nf4": 0.5 + 4 / 64}
"""Bytes of a value in each format, with the scales that are not those of rows."""
ROW_SCALED = ("fp8", "int8", "int8_weight_only")
"""Formats with a float32 scale for each row of a weight."""


def denoiser_format(settings: Settings) -> str:
    """Return the format of the denoiser's frozen weights; empty if they are not quantized."""
    if not _can_quantize(settings):
        return ""
    training, memory = settings[TrainingOptions], settings.get(MemoryOptions)
    if training.fp8_base or training.fp8_base_unet:
        return "fp8"
    return memory.chosen(memory.quantize_base) if memory else ""


def encoder_format(settings: Settings) -> str:
    """Return the format of the text encoders' frozen weights; empty if they are not quantized."""
    if not _can_quantize(settings):
        return ""
    training, memory = settings[TrainingOptions], settings.get(MemoryOptions)
    if training.fp8_base and not training.fp8_base_unet:
        return "fp8"
    return memory.chosen(memory.quantize_text_encoders) if memory else ""


def computes_in_fp8(settings: Settings) -> bool:
    """Return whether products with the denoiser's frozen weights are in fp8."""
    memory = settings.get(MemoryOptions)
    return _can_quantize(settings) and memory is not None and memory.fp8_compute


def bytes_of(weight_format: str, values: int, rows: int) -> float:
    """Return the bytes of weights with so many values and rows in a format."""
    return values * BYTES[weight_format] + (rows * 4 if weight_format in ROW_SCALED else 0)


def _can_quantize(settings: Settings) -> bool:
    """Return whether the run has frozen weights: full training updates them."""
    return bool(settings.get(NetworkOptions)) and card_of(settings.script.family).has("fp8")
