"""Gather tags into a metadata file.

python sd_scripts/finetune/merge_dd_tags_to_metadata.py images meta_clean.json --in_json meta_cap.json
"""

import sys
from functools import partial

from sd_scripts.tools.captioning import merging

main = partial(merging.main, __file__, "tags", ".txt")

if __name__ == "__main__":
    sys.exit(main())
