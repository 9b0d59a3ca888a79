"""Alias of z_image_train.py, which musubi-tuner uses."""

import sys

from sd_scripts.z_image_train import main as main
from sd_scripts.z_image_train import setup_parser as setup_parser

if __name__ == "__main__":
    sys.exit(main())
