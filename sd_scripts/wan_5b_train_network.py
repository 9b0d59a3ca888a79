"""Train a LoRA for Wan 2.2 5B.   accelerate launch sd_scripts/wan_5b_train_network.py --config_file run.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "wan_5b", "lora")
main = partial(launch.main, "wan_5b", "lora")

if __name__ == "__main__":
    sys.exit(main())
