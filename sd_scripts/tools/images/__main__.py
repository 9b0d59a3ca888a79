"""Edit copies of the images of a folder, or make masks for them; the originals are never changed.

python -m sd_scripts.tools.images photos --task convert
python -m sd_scripts.tools.images photos --task crop --crop_to faces --download
python -m sd_scripts.tools.images photos --task upscale --upscale_model 4x.safetensors --size 1024 --try_images 5
python -m sd_scripts.tools.images photos --task mask --mask_from background --download
"""

import sys
from pathlib import Path

from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.tools.image_tools import IMAGE_TOOLS, read_settings
from sd_scripts.tools.lora.command import Command, Given


def work(given: Given, reporter: Reporter) -> Path | None:
    from sd_scripts.tools.images.job import edit_images  # OpenCV and ONNX Runtime are slow to import

    edit_images(given, reporter)
    return None


COMMAND = Command(
    about="Edit copies of the images of a folder, or make masks for them.",
    groups=IMAGE_TOOLS,
    work=work,
    inputs=(),
    positional="train_data_dir",
    read_settings=read_settings,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main("images"))
