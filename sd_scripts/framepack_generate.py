"""Generate clips with FramePack.   python sd_scripts/framepack_generate.py --prompt "a cat" --ckpt model"""

import sys
from functools import partial

from sd_scripts.generating import launch
from sd_scripts.settings import generate_settings

setup_parser = partial(generate_settings.setup_parser, "framepack")
main = partial(launch.main, "framepack")

if __name__ == "__main__":
    sys.exit(main())
