"""Fine-tune SDXL.   accelerate launch sd_scripts/sdxl_train.py --config_file run.toml"""

import argparse
import sys

from sd_scripts.options.catalog import SDXL_FULL
from sd_scripts.training import launch


def setup_parser() -> argparse.ArgumentParser:
    return launch.parser(SDXL_FULL)


def main(argv: list[str] | None = None) -> int:
    def load():  # type: ignore[no-untyped-def]
        from sd_scripts.families.sdxl import SDXL
        from sd_scripts.training.full import Full

        return SDXL, Full

    return launch.main(SDXL_FULL, load, argv)


if __name__ == "__main__":
    sys.exit(main())
