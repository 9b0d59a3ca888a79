"""Merge LoRAs into a FLUX.1 model, or with each other: merge_lora under the name and flags of sd-scripts.

python -m sd_scripts.aliases.flux_merge_lora --flux_model flux1-dev.safetensors --models lora.safetensors --ratios 0.8 \
    --save_to merged.safetensors
"""

import sys

from sd_scripts.tools import merge_lora

COMMAND = merge_lora.COMMAND.named(base_model=("flux_model",))

if __name__ == "__main__":
    sys.exit(COMMAND.main(__file__))
