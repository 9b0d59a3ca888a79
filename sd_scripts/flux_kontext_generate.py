"""Edit images with FLUX.1 Kontext.   python sd_scripts/flux_kontext_generate.py --prompt "snow --ci a.png" --ckpt m"""

import sys
from functools import partial

from sd_scripts.generating import launch
from sd_scripts.settings import generate_settings

setup_parser = partial(generate_settings.setup_parser, "flux_kontext")
main = partial(launch.main, "flux_kontext")

if __name__ == "__main__":
    sys.exit(main())
