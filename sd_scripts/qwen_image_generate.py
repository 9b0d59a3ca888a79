"""Generate images with Qwen-Image.   python sd_scripts/qwen_image_generate.py --prompt "a cat --d 1" --ckpt model"""

import sys
from functools import partial

from sd_scripts.generating import launch
from sd_scripts.settings import generate_settings

setup_parser = partial(generate_settings.setup_parser, "qwen_image")
main = partial(launch.main, "qwen_image")

if __name__ == "__main__":
    sys.exit(main())
