"""Generate the regularisation images of a training with its base model. Existing images count, so a stopped job
continues.

python -m sd_scripts.tools.regularisation cat.toml
python -m sd_scripts.tools.regularisation cat.toml --prompt "a photo of a cat" --images 200 --reg_data_dir /data/reg
"""

import os
import sys
from pathlib import Path

from sd_scripts.machine import compile_cache, garbage_collection
from sd_scripts.options.generating.regularisation import REGULARISATION
from sd_scripts.runs.reporter import Reporter
from sd_scripts.tools.lora.command import Command, Given


def work(given: Given, reporter: Reporter) -> Path | None:
    from sd_scripts.tools.regularisation.request import read_request

    request = read_request(given, reporter.warn)
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # less memory lost between sizes
    compile_cache.use_own_folder()
    with garbage_collection.importing():
        from sd_scripts.tools.regularisation.job import generate  # torch is slow to import

    generate(request, reporter)
    return None


COMMAND = Command(
    about="Generate the regularisation images of a training with its base model.",
    groups=REGULARISATION,
    work=work,
    inputs=(),
    positional="config_file",
)

if __name__ == "__main__":
    sys.exit(COMMAND.main("regularisation"))
