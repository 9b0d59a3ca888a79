"""Fine-tune Krea 2's transformer.   accelerate launch sd_scripts/krea2_train.py --config_file x.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "krea2", "full")
main = partial(launch.main, "krea2", "full")

if __name__ == "__main__":
    sys.exit(main())
