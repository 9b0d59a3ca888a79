"""Fine-tune SDXL.   accelerate launch sd_scripts/sdxl_train.py --config_file run.toml"""

import argparse
import sys

from sd_scripts.training import launch


def setup_parser() -> argparse.ArgumentParser:
    return launch.parser("sdxl", "full")


def main(argv: list[str] | None = None) -> int:
    return launch.main("sdxl", "full", argv)


if __name__ == "__main__":
    sys.exit(main())
