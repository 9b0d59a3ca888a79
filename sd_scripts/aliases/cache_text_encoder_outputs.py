"""A name of musubi-tuner for commands that run this script before the training: explains why there is nothing to do."""

import sys
from functools import partial

from sd_scripts.settings.compat import musubi_caching

main = partial(musubi_caching.main, "hv_train_network.py")

if __name__ == "__main__":
    sys.exit(main())
