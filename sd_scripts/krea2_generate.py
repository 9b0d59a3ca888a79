"""Generate images with Krea 2.   python sd_scripts/krea2_generate.py --prompt "a red fox" --ckpt model"""

import sys
from functools import partial

from sd_scripts.generating import launch
from sd_scripts.settings import generate_settings

setup_parser = partial(generate_settings.setup_parser, "krea2")
main = partial(launch.main, "krea2")

if __name__ == "__main__":
    sys.exit(main())
