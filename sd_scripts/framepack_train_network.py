"""Train a LoRA for FramePack.   accelerate launch sd_scripts/framepack_train_network.py --config_file run.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "framepack", "lora")
main = partial(launch.main, "framepack", "lora")

if __name__ == "__main__":
    sys.exit(main())
