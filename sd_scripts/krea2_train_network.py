"""Train a LoRA for Krea 2.   accelerate launch sd_scripts/krea2_train_network.py --config_file x.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "krea2", "lora")
main = partial(launch.main, "krea2", "lora")

if __name__ == "__main__":
    sys.exit(main())
