"""Alias of hunyuan_video_train.py, which musubi-tuner uses."""

import sys

from sd_scripts.hunyuan_video_train import main as main
from sd_scripts.hunyuan_video_train import setup_parser as setup_parser

if __name__ == "__main__":
    sys.exit(main())
