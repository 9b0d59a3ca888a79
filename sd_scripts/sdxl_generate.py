"""Generate images with SDXL.   python sd_scripts/sdxl_generate.py --prompt "a cat --d 1" --ckpt model.safetensors"""

import sys
from functools import partial

from sd_scripts.generating import launch
from sd_scripts.settings import generate_settings

setup_parser = partial(generate_settings.setup_parser, "sdxl")
main = partial(launch.main, "sdxl")

if __name__ == "__main__":
    sys.exit(main())
