"""Train a LoRA for Anima.   accelerate launch sd_scripts/anima_train_network.py --config_file x.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "anima", "lora")
main = partial(launch.main, "anima", "lora")

if __name__ == "__main__":
    sys.exit(main())
