"""Fine-tune FLUX.1's transformer.   accelerate launch sd_scripts/flux_train.py --config_file run.toml"""

import argparse
import sys

from sd_scripts.options.catalog import FLUX_FULL
from sd_scripts.training import launch


def setup_parser() -> argparse.ArgumentParser:
    return launch.parser(FLUX_FULL)


def main(argv: list[str] | None = None) -> int:
    def load():  # type: ignore[no-untyped-def]
        from sd_scripts.families.flux import FLUX
        from sd_scripts.training.full import Full

        return FLUX, Full

    return launch.main(FLUX_FULL, load, argv)


if __name__ == "__main__":
    sys.exit(main())
