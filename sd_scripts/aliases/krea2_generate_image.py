"""Alias of krea2_generate.py, which musubi-tuner uses."""

import sys

from sd_scripts.krea2_generate import main as main
from sd_scripts.krea2_generate import setup_parser as setup_parser

if __name__ == "__main__":
    sys.exit(main())
