"""Caption images with Florence-2, by the command line of sd-scripts.

python sd_scripts/finetune/caption_images_by_florence2.py images --batch_size 4
"""

import sys
from functools import partial

from sd_scripts.tools.captioning import other_commands

main = partial(other_commands.main, __file__, "florence2_caption")

if __name__ == "__main__":
    sys.exit(main())
