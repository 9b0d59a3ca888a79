"""Generate images with Anima.   python sd_scripts/anima_generate.py --prompt "a red fox" --ckpt model"""

import sys
from functools import partial

from sd_scripts.generating import launch
from sd_scripts.settings import generate_settings

setup_parser = partial(generate_settings.setup_parser, "anima")
main = partial(launch.main, "anima")

if __name__ == "__main__":
    sys.exit(main())
