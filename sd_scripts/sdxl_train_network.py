"""Train a LoRA for SDXL.   accelerate launch sd_scripts/sdxl_train_network.py --config_file run.toml"""

import argparse
import sys

from sd_scripts.training import launch


def setup_parser() -> argparse.ArgumentParser:
    return launch.parser("sdxl", "lora")


def main(argv: list[str] | None = None) -> int:
    return launch.main("sdxl", "lora", argv)


if __name__ == "__main__":
    sys.exit(main())
