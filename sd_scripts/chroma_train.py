"""Fine-tune Chroma's transformer.   accelerate launch sd_scripts/chroma_train.py --config_file x.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "chroma", "full")
main = partial(launch.main, "chroma", "full")

if __name__ == "__main__":
    sys.exit(main())
