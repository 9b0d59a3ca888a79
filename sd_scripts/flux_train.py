"""Fine-tune FLUX.1's transformer.   accelerate launch sd_scripts/flux_train.py --config_file run.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "flux", "full")
main = partial(launch.main, "flux", "full")

if __name__ == "__main__":
    sys.exit(main())
