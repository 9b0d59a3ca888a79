"""The training backend of the page: models, options, files, runs."""

import logging
from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)  # another folder of PYTHONPATH may add a model family

# Without a GPU it warns at every import about a missing CPU kernel, which we do not use.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
