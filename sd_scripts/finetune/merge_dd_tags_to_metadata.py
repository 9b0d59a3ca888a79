"""Gather tags into a metadata file.

python sd_scripts/finetune/merge_dd_tags_to_metadata.py images meta_clean.json --in_json meta_cap.json
"""

import sys

from sd_scripts.finetune import merging


def main(argv: list[str] | None = None) -> int:
    return merging.main(__file__, "tags", ".txt", argv)


if __name__ == "__main__":
    sys.exit(main())
