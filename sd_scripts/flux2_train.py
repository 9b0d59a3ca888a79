"""Fine-tune FLUX.2 klein's transformer.   accelerate launch sd_scripts/flux2_train.py --config_file x.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "flux2", "full")
main = partial(launch.main, "flux2", "full")

if __name__ == "__main__":
    sys.exit(main())
