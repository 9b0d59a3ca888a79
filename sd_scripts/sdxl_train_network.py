"""Train a LoRA for SDXL.   accelerate launch sd_scripts/sdxl_train_network.py --config_file run.toml"""

import argparse
import sys

from sd_scripts.options.catalog import SDXL_LORA
from sd_scripts.training import launch


def setup_parser() -> argparse.ArgumentParser:
    return launch.parser(SDXL_LORA)


def main(argv: list[str] | None = None) -> int:
    def load():  # type: ignore[no-untyped-def]
        from sd_scripts.families.sdxl import SDXL
        from sd_scripts.training.lora import Lora

        return SDXL, Lora

    return launch.main(SDXL_LORA, load, argv)


if __name__ == "__main__":
    sys.exit(main())
