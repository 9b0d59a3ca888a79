"""Gather captions into a metadata file.

python sd_scripts/finetune/merge_captions_to_metadata.py images meta_cap.json
"""

import sys
from functools import partial

from sd_scripts.tools.captioning import merging

main = partial(merging.main, __file__, "caption", ".caption")

if __name__ == "__main__":
    sys.exit(main())
