"""Merge LoRAs into an SDXL model, or with each other: merge_lora under the name and flags of sd-scripts.

python -m sd_scripts.aliases.sdxl_merge_lora --sd_model model.safetensors --models lora.safetensors --ratios 0.8 \
    --save_to merged.safetensors
"""

import sys

from sd_scripts.tools import merge_lora

COMMAND = merge_lora.COMMAND.named(base_model=("sd_model",))

if __name__ == "__main__":
    sys.exit(COMMAND.main(__file__))
