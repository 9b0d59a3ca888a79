"""Fine-tune FLUX.1 Kontext's transformer.   accelerate launch sd_scripts/flux_kontext_train.py --config_file x.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "flux_kontext", "full")
main = partial(launch.main, "flux_kontext", "full")

if __name__ == "__main__":
    sys.exit(main())
