"""Caption images with GIT, by the command line of sd-scripts.

python sd_scripts/finetune/make_captions_by_git.py images --batch_size 4
"""

import sys
from functools import partial

from sd_scripts.tools.captioning import other_commands

main = partial(other_commands.main, __file__, "git_caption")

if __name__ == "__main__":
    sys.exit(main())
