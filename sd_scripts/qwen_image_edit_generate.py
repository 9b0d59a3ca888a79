"""Edit images with Qwen-Image-Edit.   python sd_scripts/qwen_image_edit_generate.py --prompt_file p.txt"""

import sys
from functools import partial

from sd_scripts.generating import launch
from sd_scripts.settings import generate_settings

setup_parser = partial(generate_settings.setup_parser, "qwen_image_edit")
main = partial(launch.main, "qwen_image_edit")

if __name__ == "__main__":
    sys.exit(main())
