"""Train an embedding for SDXL.   accelerate launch sd_scripts/sdxl_train_textual_inversion.py --config_file run.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "sdxl", "textual_inversion")
main = partial(launch.main, "sdxl", "textual_inversion")

if __name__ == "__main__":
    sys.exit(main())
