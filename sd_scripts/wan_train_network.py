"""Train a LoRA for Wan.   accelerate launch sd_scripts/wan_train_network.py --config_file run.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "wan", "lora")
main = partial(launch.main, "wan", "lora")

if __name__ == "__main__":
    sys.exit(main())
