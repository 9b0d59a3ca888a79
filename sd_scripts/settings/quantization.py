"""In which format a run stores its frozen weights, and in how many bytes."""

from collections.abc import Mapping
from dataclasses import dataclass

from sd_scripts.families.cards.registry import card_of
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.settings.settings import Settings

BYTES: Mapping[str, float] = {"fp8": 1.0, "int8": 1.0, "int8_weight_only": 1.0, "nf4": 0.5 + 4 / 64}
"""Bytes of a value in each format, with the scales other than rows'."""
ROW_SCALED = ("fp8", "int8", "int8_weight_only")
"""Formats with a float32 scale for each row of a weight."""


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """In which formats a run stores its frozen weights; empty if they are not quantized."""

    denoiser: str = ""
    encoders: str = ""
    fp8_compute: bool = False
    """Whether products with the denoiser's frozen weights are in fp8."""


def quantization_of(settings: Settings) -> Quantization:
    """Return the formats that options ask for. Full training has no frozen weights."""
    if not settings.get(NetworkOptions) or not card_of(settings.script.family).has("fp8"):
        return Quantization()
    training = settings[TrainingOptions]
    memory = settings.get(MemoryOptions)
    denoiser = memory.chosen(memory.quantize_base) if memory else ""
    encoders = memory.chosen(memory.quantize_text_encoders) if memory else ""
    if training.fp8_base or training.fp8_base_unet:
        denoiser = "fp8"
    if training.fp8_base and not training.fp8_base_unet:
        encoders = "fp8"
    return Quantization(denoiser=denoiser, encoders=encoders, fp8_compute=memory is not None and memory.fp8_compute)


def bytes_of(weight_format: str, values: int, rows: int) -> float:
    """Return the bytes of weights with this many values and rows in a format."""
    return values * BYTES[weight_format] + (rows * 4 if weight_format in ROW_SCALED else 0)
