"""The layers that LoRA adapts in Chroma: FLUX.1's, with the approximator's names in diffusers."""

from dataclasses import replace

from sd_scripts.families.chroma.keys import diffusers_modules
from sd_scripts.families.flux import lora as flux

TRANSFORMER = replace(flux.TRANSFORMER, diffusers_paths=diffusers_modules)
TEXT_ENCODERS = flux.TEXT_ENCODERS[1:]
"""T5-XXL."""
