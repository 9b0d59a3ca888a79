"""The training backend: SDXL now, FLUX.1 to come."""

import logging

# On machines without a card it says at every import that a kernel for CPUs is not there, which nobody here needs.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
