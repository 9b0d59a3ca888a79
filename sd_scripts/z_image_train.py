"""Fine-tune Z-Image's transformer.   accelerate launch sd_scripts/z_image_train.py --config_file x.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "z_image", "full")
main = partial(launch.main, "z_image", "full")

if __name__ == "__main__":
    sys.exit(main())
