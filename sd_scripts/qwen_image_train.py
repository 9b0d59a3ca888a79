"""Fine-tune Qwen-Image's transformer.   accelerate launch sd_scripts/qwen_image_train.py --config_file run.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "qwen_image", "full")
main = partial(launch.main, "qwen_image", "full")

if __name__ == "__main__":
    sys.exit(main())
