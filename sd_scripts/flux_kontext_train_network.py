"""Train a LoRA for FLUX.1 Kontext.   accelerate launch sd_scripts/flux_kontext_train_network.py --config_file x.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "flux_kontext", "lora")
main = partial(launch.main, "flux_kontext", "lora")

if __name__ == "__main__":
    sys.exit(main())
