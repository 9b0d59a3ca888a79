"""Generate images with FLUX.2 klein.   python sd_scripts/flux2_generate.py --prompt "a red fox" --ckpt model"""

import sys
from functools import partial

from sd_scripts.generating import launch
from sd_scripts.settings import generate_settings

setup_parser = partial(generate_settings.setup_parser, "flux2")
main = partial(launch.main, "flux2")

if __name__ == "__main__":
    sys.exit(main())
