"""Fine-tune HunyuanVideo's transformer.   accelerate launch sd_scripts/hunyuan_video_train.py --config_file run.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "hunyuan_video", "full")
main = partial(launch.main, "hunyuan_video", "full")

if __name__ == "__main__":
    sys.exit(main())
