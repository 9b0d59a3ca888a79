"""Generate images with Reel.   python sd_scripts/reel_generate.py --prompt "a cat --d 1" --ckpt model.safetensors"""

import sys
from functools import partial

from sd_scripts.generating import launch
from sd_scripts.settings import generate_settings

setup_parser = partial(generate_settings.setup_parser, "reel")
main = partial(launch.main, "reel")

if __name__ == "__main__":
    sys.exit(main())
