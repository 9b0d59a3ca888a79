"""Alias of anima_generate.py, which sd-scripts uses."""

import sys

from sd_scripts.anima_generate import main as main
from sd_scripts.anima_generate import setup_parser as setup_parser

if __name__ == "__main__":
    sys.exit(main())
