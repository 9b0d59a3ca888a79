"""Generate images with Z-Image.   python sd_scripts/z_image_generate.py --prompt "a red fox" --ckpt model"""

import sys
from functools import partial

from sd_scripts.generating import launch
from sd_scripts.settings import generate_settings

setup_parser = partial(generate_settings.setup_parser, "z_image")
main = partial(launch.main, "z_image")

if __name__ == "__main__":
    sys.exit(main())
