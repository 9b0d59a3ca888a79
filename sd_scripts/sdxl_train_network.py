"""Train a LoRA for SDXL.   accelerate launch sd_scripts/sdxl_train_network.py --config_file run.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "sdxl", "lora")
main = partial(launch.main, "sdxl", "lora")

if __name__ == "__main__":
    sys.exit(main())
