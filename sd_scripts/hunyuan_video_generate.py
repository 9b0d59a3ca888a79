"""Generate clips with HunyuanVideo.   python sd_scripts/hunyuan_video_generate.py --prompt "a cat" --ckpt model"""

import sys
from functools import partial

from sd_scripts.generating import launch
from sd_scripts.settings import generate_settings

setup_parser = partial(generate_settings.setup_parser, "hunyuan_video")
main = partial(launch.main, "hunyuan_video")

if __name__ == "__main__":
    sys.exit(main())
