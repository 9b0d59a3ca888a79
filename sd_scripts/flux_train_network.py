"""Train a LoRA for FLUX.1.   accelerate launch sd_scripts/flux_train_network.py --config_file run.toml"""

import argparse
import sys

from sd_scripts.options.catalog import FLUX_LORA
from sd_scripts.training import launch


def setup_parser() -> argparse.ArgumentParser:
    return launch.parser(FLUX_LORA)


def main(argv: list[str] | None = None) -> int:
    def load():  # type: ignore[no-untyped-def]
        from sd_scripts.families.flux import FLUX
        from sd_scripts.training.lora import Lora

        return FLUX, Lora

    return launch.main(FLUX_LORA, load, argv)


if __name__ == "__main__":
    sys.exit(main())
