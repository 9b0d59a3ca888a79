"""A name of musubi-tuner for commands that run this script before the training: explains why there is nothing to do."""

import sys

from sd_scripts.settings.compat.musubi_caching import main as main

if __name__ == "__main__":
    sys.exit(main())
