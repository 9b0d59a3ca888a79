"""Caption or tag the images of a folder.

python -m sd_scripts.tools.captioning images --method tagger --download
python -m sd_scripts.tools.captioning images --method captioner --model florence-community/Florence-2-large
OPENAI_API_KEY=... python -m sd_scripts.tools.captioning images --method endpoint --endpoint http://localhost:11434/v1 \
    --model qwen3-vl --try_images 5
"""

import sys
from pathlib import Path

from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.compat.captioning import CAPTIONING, read_settings
from sd_scripts.tools.lora.command import Command, Given


def work(given: Given, reporter: Reporter) -> Path | None:
    from sd_scripts.tools.captioning.job import caption_images  # torch is slow to import

    caption_images(given, reporter)
    return None


COMMAND = Command(
    about="Caption or tag the images of a folder.",
    groups=CAPTIONING,
    work=work,
    inputs=(),
    positional="train_data_dir",
    read_settings=read_settings,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main("captioning"))
