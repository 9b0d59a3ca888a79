"""Fine-tune SDXL.   accelerate launch sd_scripts/sdxl_train.py --config_file run.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "sdxl", "full")
main = partial(launch.main, "sdxl", "full")

if __name__ == "__main__":
    sys.exit(main())
