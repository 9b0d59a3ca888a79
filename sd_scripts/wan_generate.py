"""Generate clips and images with Wan.   python sd_scripts/wan_generate.py --prompt "a cat --f 81 --d 1" --ckpt model"""

import sys
from functools import partial

from sd_scripts.generating import launch
from sd_scripts.settings import generate_settings

setup_parser = partial(generate_settings.setup_parser, "wan")
main = partial(launch.main, "wan")

if __name__ == "__main__":
    sys.exit(main())
