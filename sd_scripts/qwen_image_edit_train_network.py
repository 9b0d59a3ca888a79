"""Train a LoRA for Qwen-Image-Edit.

accelerate launch sd_scripts/qwen_image_edit_train_network.py --config_file x.toml
"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "qwen_image_edit", "lora")
main = partial(launch.main, "qwen_image_edit", "lora")

if __name__ == "__main__":
    sys.exit(main())
