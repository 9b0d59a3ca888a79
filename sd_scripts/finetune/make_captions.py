"""Caption images with BLIP, by the command line of sd-scripts.

python sd_scripts/finetune/make_captions.py images --batch_size 4
"""

import sys
from functools import partial

from sd_scripts.tools.captioning import other_commands

main = partial(other_commands.main, __file__, "blip_caption")

if __name__ == "__main__":
    sys.exit(main())
