"""Fine-tune Wan's transformer.   accelerate launch sd_scripts/wan_train.py --config_file run.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "wan", "full")
main = partial(launch.main, "wan", "full")

if __name__ == "__main__":
    sys.exit(main())
