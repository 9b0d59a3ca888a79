"""Compare LoRA gradients at full size with those of sd-scripts' model in float32, by kind of layer.

python -m benchmarks.gradients --family flux --sd_scripts FOLDER [--markdown flux.md]
python -m benchmarks.gradients --family sdxl --sd_scripts FOLDER --miniature

FOLDER is a copy of https://github.com/kohya-ss/sd-scripts, whose model and LoRA module compute the reference, and
again in bf16 as it trains. It imports torchvision. All rows have the same random weights, rounded to bf16, the same
LoRA, none of whose matrices is 0, and the same inputs. A distance is the norm of the difference divided by the norm of
the reference, the mean of four timesteps; in parentheses it is divided by the distance of sd-scripts in bf16.
"""

import argparse
import gc
import logging
import sys
import time
from pathlib import Path

import torch

from benchmarks.gradients.comparison import Comparison
from benchmarks.gradients.rows import FLOAT32_NORMS, OURS, Results, ours, theirs
from benchmarks.gradients.table import ALL, Gradients, Row, distances, table
from benchmarks.steps import machine
from sd_scripts.tools.timed_run import GIB

FAMILIES = ("flux", "sdxl")
REFERENCE, BASE = "sd-scripts float32", "sd-scripts bf16"


def measured(title: str, results: Results, reference: list[Gradients], kinds: dict[str, str]) -> Row:
    """Return a row of the table, and report it. An empty `reference` is filled with the gradients."""
    began = time.perf_counter()
    row = Row()
    fills = not reference
    for number, (loss, gradients) in enumerate(results):
        row.losses.append(loss)
        if fills:
            reference.append(gradients)
        row.distances.append(distances(gradients, reference[number], kinds))
    used = ""
    gc.collect()  # modules and the methods that are put into them refer to each other
    if torch.cuda.is_available():
        used = f", {torch.cuda.max_memory_allocated() / GIB:.1f} GiB"
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    seconds = time.perf_counter() - began
    print(f"{title}: distance {row.distance(ALL):.2e}, {seconds:.0f} s{used}", file=sys.stderr, flush=True)
    return row


def compare(case: Comparison) -> str:
    """Return the table of all rows."""
    kinds = case.models.KINDS
    gradients: list[Gradients] = []
    reference = measured(REFERENCE, theirs(case, torch.float32), gradients, kinds)
    rows = {BASE: measured(BASE, theirs(case, torch.bfloat16), gradients, kinds)}
    for title in OURS:
        if title != FLOAT32_NORMS or case.family.card.has("group_norms"):
            rows[title] = measured(title, ours(case, title), gradients, kinds)
    return table(rows, reference, BASE, list(kinds))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--sd_scripts", type=Path, required=True, metavar="FOLDER", help="a copy of sd-scripts")
    parser.add_argument("--markdown", type=Path, help="write the table here too")
    parser.add_argument("--miniature", action="store_true", help="try the benchmark itself on a tiny model")
    arguments = parser.parse_args(argv)
    if not (arguments.sd_scripts / "networks" / "lora_flux.py").is_file():
        print(f"--sd_scripts: '{arguments.sd_scripts}' is not a copy of sd-scripts", file=sys.stderr)
        return 2
    if not (arguments.miniature or torch.cuda.is_available()):
        print("--family: a full-size model needs an NVIDIA GPU; set --miniature", file=sys.stderr)
        return 2
    logging.disable(logging.INFO)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    case = Comparison(arguments.family, miniature=arguments.miniature)
    sys.path.append(str(arguments.sd_scripts))
    text = f"{machine()}\n\n{compare(case)}\n"
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
