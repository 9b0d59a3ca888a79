"""Fine-tune FramePack's transformer.   accelerate launch sd_scripts/framepack_train.py --config_file run.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "framepack", "full")
main = partial(launch.main, "framepack", "full")

if __name__ == "__main__":
    sys.exit(main())
