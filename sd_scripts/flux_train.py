"""Fine-tune FLUX.1's transformer.   accelerate launch sd_scripts/flux_train.py --config_file run.toml"""

import argparse
import sys

from sd_scripts.training import launch


def setup_parser() -> argparse.ArgumentParser:
    return launch.parser("flux", "full")


def main(argv: list[str] | None = None) -> int:
    return launch.main("flux", "full", argv)


if __name__ == "__main__":
    sys.exit(main())
