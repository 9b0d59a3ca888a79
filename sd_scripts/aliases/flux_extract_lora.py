"""Extract a LoRA from two FLUX.1 models: extract_lora_from_models under the name of sd-scripts.

python -m sd_scripts.aliases.flux_extract_lora --model_org base.safetensors --model_tuned tuned.safetensors --dim 32 \
    --save_to lora.safetensors
"""

import sys

from sd_scripts.tools.extract_lora_from_models import COMMAND

if __name__ == "__main__":
    sys.exit(COMMAND.main(__file__))
