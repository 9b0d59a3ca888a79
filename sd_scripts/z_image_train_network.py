"""Train a LoRA for Z-Image.   accelerate launch sd_scripts/z_image_train_network.py --config_file x.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "z_image", "lora")
main = partial(launch.main, "z_image", "lora")

if __name__ == "__main__":
    sys.exit(main())
