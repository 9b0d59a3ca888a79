"""Train a LoRA for HunyuanVideo.   accelerate launch sd_scripts/hunyuan_video_train_network.py --config_file a.toml"""

import sys
from functools import partial

from sd_scripts.training import launch

setup_parser = partial(launch.parser, "hunyuan_video", "lora")
main = partial(launch.main, "hunyuan_video", "lora")

if __name__ == "__main__":
    sys.exit(main())
