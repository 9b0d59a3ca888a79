"""The training backend for SDXL and FLUX.1."""

import logging

# Without a GPU it warns at every import about a missing CPU kernel, which we do not use.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
