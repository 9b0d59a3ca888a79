"""Train a LoRA for FLUX.2 klein.   accelerate launch sd_scripts/flux2_train_network.py --config_file x.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "flux2", "lora")
main = partial(launch.main, "flux2", "lora")

if __name__ == "__main__":
    sys.exit(main())
