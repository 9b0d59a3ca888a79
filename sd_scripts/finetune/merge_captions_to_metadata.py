"""Gather captions into a metadata file.

python sd_scripts/finetune/merge_captions_to_metadata.py images meta_cap.json
"""

import sys

from sd_scripts.finetune import merging


def main(argv: list[str] | None = None) -> int:
    return merging.main(__file__, "caption", ".caption", argv)


if __name__ == "__main__":
    sys.exit(main())
