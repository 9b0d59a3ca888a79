"""Fine-tune Anima's transformer.   accelerate launch sd_scripts/anima_train.py --config_file x.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "anima", "full")
main = partial(launch.main, "anima", "full")

if __name__ == "__main__":
    sys.exit(main())
