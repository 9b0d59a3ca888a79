"""Train a LoRA for Qwen-Image.   accelerate launch sd_scripts/qwen_image_train_network.py --config_file run.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "qwen_image", "lora")
main = partial(launch.main, "qwen_image", "lora")

if __name__ == "__main__":
    sys.exit(main())
