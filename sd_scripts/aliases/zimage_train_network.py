"""Alias of z_image_train_network.py, which musubi-tuner uses."""

import sys

from sd_scripts.z_image_train_network import main as main
from sd_scripts.z_image_train_network import setup_parser as setup_parser

if __name__ == "__main__":
    sys.exit(main())
