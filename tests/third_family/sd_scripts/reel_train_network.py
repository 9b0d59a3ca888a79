"""Train a LoRA for Reel."""

import sys

from sd_scripts.training import launch


def main(argv: list[str] | None = None) -> int:
    return launch.main("reel", "lora", argv)


if __name__ == "__main__":
    sys.exit(main())
