"""Tag images with a WD14-family tagger, by the command line of sd-scripts.

python sd_scripts/finetune/tag_images_by_wd14_tagger.py images --repo_id SmilingWolf/wd-vit-tagger-v3 --onnx
"""

import sys
from functools import partial

from sd_scripts.tools.captioning import other_commands

main = partial(other_commands.main, __file__, "wd14_caption")

if __name__ == "__main__":
    sys.exit(main())
