"""FLUX.1 Kontext at full size, without weights: FLUX.1's modules."""

from sd_scripts.families.flux.full_size import modules as modules
