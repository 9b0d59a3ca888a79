"""Train a LoRA for Chroma.   accelerate launch sd_scripts/chroma_train_network.py --config_file x.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "chroma", "lora")
main = partial(launch.main, "chroma", "lora")

if __name__ == "__main__":
    sys.exit(main())
