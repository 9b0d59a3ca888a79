"""Compare the checkpoints of a run: images at several strengths with fixed seeds, and the validation loss of each.

python -m sd_scripts.tools.compare_checkpoints RUN_FOLDER --strengths 0.6 1 --prompt "a photo of sks cat" --seeds 1 2
"""

import os
import sys
from pathlib import Path

from sd_scripts.machine import compile_cache, garbage_collection
from sd_scripts.options.generating.compare_checkpoints import COMPARE_GROUPS
from sd_scripts.runs.reporter import Reporter
from sd_scripts.tools.lora.command import Command, Given


def work(given: Given, reporter: Reporter) -> Path:
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # less memory lost between sizes
    compile_cache.use_own_folder()
    with garbage_collection.importing():
        from sd_scripts.tools.comparison.matrix import compare  # torch is slow to import

    return compare(given, reporter)


COMMAND = Command(
    about="Compare the checkpoints of a run: images at several strengths, and the validation loss of each.",
    groups=COMPARE_GROUPS,
    work=work,
    inputs=(),
    positional="run",
)

if __name__ == "__main__":
    sys.exit(COMMAND.main(__file__))
