"""Convert a LoRA of FLUX.1 between key names: convert_lora under the name of sd-scripts.

python -m sd_scripts.aliases.convert_flux_lora --dst ai-toolkit --src_path lora.safetensors --dst_path new.safetensors
"""

import sys

from sd_scripts.tools.convert_lora import COMMAND

if __name__ == "__main__":
    sys.exit(COMMAND.main(__file__))
