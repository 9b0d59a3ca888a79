"""Fine-tune Wan 2.2 5B's transformer.   accelerate launch sd_scripts/wan_5b_train.py --config_file run.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "wan_5b", "full")
main = partial(launch.main, "wan_5b", "full")

if __name__ == "__main__":
    sys.exit(main())
