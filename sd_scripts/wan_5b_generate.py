"""Generate clips with Wan 2.2 5B.   python sd_scripts/wan_5b_generate.py --prompt "a cat --f 121" --ckpt model"""

import sys
from functools import partial

from sd_scripts.generating import launch
from sd_scripts.settings import generate_settings

setup_parser = partial(generate_settings.setup_parser, "wan_5b")
main = partial(launch.main, "wan_5b")

if __name__ == "__main__":
    sys.exit(main())
