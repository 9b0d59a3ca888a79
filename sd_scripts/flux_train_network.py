"""Train a LoRA for FLUX.1.   accelerate launch sd_scripts/flux_train_network.py --config_file run.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "flux", "lora")
main = partial(launch.main, "flux", "lora")

if __name__ == "__main__":
    sys.exit(main())
