"""Train a LoRA for FLUX.1.   accelerate launch sd_scripts/flux_train_network.py --config_file run.toml"""

import argparse
import sys

from sd_scripts.training import launch


def setup_parser() -> argparse.ArgumentParser:
    return launch.parser("flux", "lora")


def main(argv: list[str] | None = None) -> int:
    return launch.main("flux", "lora", argv)


if __name__ == "__main__":
    sys.exit(main())
