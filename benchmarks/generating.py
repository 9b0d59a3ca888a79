"""Time images of a full-size model with random weights: our generator beside diffusers' pipeline, eager and compiled.

python -m benchmarks.generating [--family NAME] [--rows NAME ...] [--steps 20] [--images 3]
python -m benchmarks.generating --rows compiled diffusers_whole --compile_mode default

Each row is a process of its own with an empty compiler cache, one after another, that generates several images of the
same prompt, one at a time, in bf16. An image is timed from text embeddings to pixels in main memory: all denoising
steps, and the VAE. Its prompt is encoded before. The first image, in which a model compiles, is told apart.
Ours are those of the script that generates, with its options, without previews. diffusers' pipeline has the same
sizes, steps, sampler and guidance, and takes random text embeddings; diffusers_compiled compiles its repeated blocks,
diffusers_whole, which has to be named, the whole denoiser with max-autotune. Flags of the generating script apply to
our rows, and as far as they are about the images to all.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.full_size import full_size
from benchmarks.observed_run import look_at_gpu
from benchmarks.pipelines import FAMILIES as WITH_PIPELINE
from benchmarks.pipelines import pipeline_module
from benchmarks.steps import machine, write_model
from sd_scripts.data.plan.blueprint import parse_resolution
from sd_scripts.machine.compile_cache import VARIABLE
from sd_scripts.machine.nvidia import CPU, first_gpu
from sd_scripts.settings.catalog import FAMILY_TITLES
from sd_scripts.settings.generate_settings import prompts_of, read_command_line
from sd_scripts.tools.timed_run import GIB, POLL, ROOT

FAMILIES = tuple(name for name in FAMILY_TITLES if name in WITH_PIPELINE)
OURS: dict[str, tuple[str, ...]] = {"eager": (), "compiled": ("--compile",)}
"""Rows of our generator: flags of the script that tell each from the others."""
DIFFUSERS: dict[str, dict[str, Any] | None] = {
    "diffusers": None,
    "diffusers_compiled": {"fullgraph": True},
    "diffusers_whole": {"fullgraph": True, "mode": "max-autotune"},
}
"""Rows of diffusers' pipeline: how its denoiser is compiled, as diffusers' page on fast inference shows it. With a mode
all of it is one graph, else its repeated blocks are."""
ROWS = (*OURS, *DIFFUSERS)
DEFAULT_ROWS = ROWS[:4]
COMPARED = ("eager", "diffusers")
"""Rows that the others are compared with."""
PROMPT = "a photograph of a red fox that sits in fresh snow beside a wooden fence, soft morning light, shallow focus"
NEGATIVE = "blurry, low quality"
SMALL = ("--compile_backend", "eager", "--dtype", "fp32")
"""Flags with --miniature: CPUs emulate bf16, and inductor would compile C++ for longer than all images take."""
SMALL_SIDE = 64
HEADINGS = (
    *("row", "s per image", "of each image", "ms per step", "beside steps ms", "GiB allocated", "GPU busy"),
    *("first image s", "start s", "graphs", "speed, eager = 1", "speed, diffusers = 1"),
)


class Failed(Exception):
    """A row ended before its images were done. The text is the end of its console."""


@dataclass(kw_only=True)
class Row:
    """What was seen of the process of a row."""

    began: float
    images: list[dict[str, Any]] = field(default_factory=list)
    """TimedImage of timed_images, the first one included."""
    busy: list[float] = field(default_factory=list)
    """Percent of the time in which a kernel ran, after the first image."""

    @property
    def later(self) -> list[float]:
        return [image["seconds"] for image in self.images[1:]]

    @property
    def median(self) -> float:
        """Seconds per image."""
        return statistics.median(self.later)

    @property
    def step(self) -> float:
        return float(statistics.median(image["step"] for image in self.images[1:]))

    @property
    def start(self) -> float:
        """Seconds from the start of the program to the end of the first image."""
        return float(self.images[0]["time"]) - self.began


def line(name: str, rows: Mapping[str, Row], steps: int) -> str:
    """Return a row of the table."""
    row = rows[name]
    allocated = max(image["allocated"] for image in row.images[1:])
    cells = [
        name,
        f"{row.median:.2f}",
        ", ".join(f"{seconds:.2f}" for seconds in row.later),
        f"{1000 * row.step:.1f}",
        f"{1000 * (row.median - steps * row.step):.0f}",
        f"{allocated / GIB:.2f}" if allocated else "",
        f"{statistics.fmean(row.busy):.0f} %" if row.busy else "",
        f"{row.images[0]['seconds']:.1f}",
        f"{row.start:.1f}",
        str(row.images[-1]["graphs"]),
        *(f"{rows[other].median / row.median:.2f}" if other in rows else "" for other in COMPARED),
    ]
    return f"| {' | '.join(cells)} |"


def table(rows: Mapping[str, Row], steps: int) -> str:
    lines = [f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|"]
    return "\n".join([*lines, *(line(name, rows, steps) for name in rows)])


def run_row(name: str, family: str, flags: Sequence[str], images: int, folder: Path) -> Row:
    """Generate the images of a row in a process of its own. Raises Failed."""
    result, console = folder / "images.jsonl", folder / "console.txt"
    result.touch()
    own = ["--family", family, "--row", name, "--images", str(images), "--result", str(result)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "HF_HUB_OFFLINE": "1",
        VARIABLE: str(folder / "compiled"),
    }
    environment.setdefault(
        "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"
    )  # as the script that generates sets it
    command = [sys.executable, "-m", "benchmarks.timed_images", *own, *flags, *OURS.get(name, ())]
    row = Row(began=time.time())
    with console.open("wb") as output, result.open(encoding="utf-8") as lines:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            while process.poll() is None:
                time.sleep(POLL)
                row.images += map(json.loads, lines)
                if 0 < len(row.images) < images and (seen := look_at_gpu()):
                    row.busy.append(seen[0])
        finally:
            process.kill()
            process.wait()
        row.images += map(json.loads, lines)
    if process.returncode or len(row.images) < images:
        raise Failed(console.read_text(errors="replace").strip()[-3000:])
    return row


def problems(arguments: argparse.Namespace, flags: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with the command line."""
    if unknown := [name for name in arguments.rows if name not in ROWS]:
        yield f"--rows: unknown row {', '.join(unknown)}; choose from {', '.join(ROWS)}"
    for name, least in (("steps", 2), ("images", 2)):
        if getattr(arguments, name) < least:
            yield f"--{name}: must be at least {least}, since the first one is not timed with the others"
    if not arguments.miniature and first_gpu().name == CPU:
        yield "There is no NVIDIA GPU, which full-size models need; set --miniature to try this program on a tiny model"
    settings, wrong = read_command_line(arguments.family, flags)
    yield from map(str, dict.fromkeys([*wrong, *settings.wrong_values()]))


def image_flags(arguments: argparse.Namespace, more: Sequence[str]) -> list[str]:
    """Return the flags of the generating script that all rows share. Raises ValueError, one sentence."""
    options = dict(pipeline_module(arguments.family).OPTIONS)
    if arguments.miniature:
        options |= {"width": SMALL_SIDE, "height": SMALL_SIDE}
    if arguments.resolution:
        options["width"], options["height"] = parse_resolution(arguments.resolution, "--resolution")
    options |= {"steps": arguments.steps, "image_seed": 1, "prompt": PROMPT, "negative_prompt": NEGATIVE}
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    flags += [*(SMALL if arguments.miniature else ()), *more]
    prompts_of(read_command_line(arguments.family, flags)[0])
    return flags


def model_flags(arguments: argparse.Namespace) -> list[str]:
    """Return the flags that name the model's files, which are written if they are not there."""
    short = getattr(full_size(arguments.family), "SHORT_ENCODER", {})
    folder = arguments.folder.resolve() / (f"{arguments.family}_short_encoder" if short else arguments.family)
    files = write_model(arguments.family, folder, miniature=arguments.miniature, **short).files
    return [word for option, path in files.items() for word in (f"--{option}", str(path))]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--family", choices=FAMILIES, default=FAMILIES[0])
    parser.add_argument("--rows", nargs="+", default=DEFAULT_ROWS, metavar="NAME", help=f"any of {', '.join(ROWS)}")
    parser.add_argument("--steps", type=int, default=20, help="denoising steps of each image")
    parser.add_argument("--images", type=int, default=3, help="images of each row, the first one included")
    parser.add_argument("--resolution", metavar="W,H", help="size of the images; default: what suits the family")
    parser.add_argument("--markdown", type=Path, help="write the table here too")
    parser.add_argument("--folder", type=Path, default=Path("benchmark"), help="for model files; they stay there")
    parser.add_argument("--miniature", action="store_true", help="try this program itself on a tiny model, on the CPU")
    arguments, more = parser.parse_known_args(argv)
    try:
        if wrong := list(problems(arguments, more)):
            raise ValueError("\n".join(wrong))
        images = image_flags(arguments, more)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    about = f"{FAMILY_TITLES[arguments.family]}. {machine()}\n\n{' '.join(images)}"
    files = model_flags(arguments)
    rows: dict[str, Row] = {}
    failed = 0
    for name in dict.fromkeys(arguments.rows):
        try:
            with tempfile.TemporaryDirectory() as folder:
                where = ["--image_dir", folder]  # nothing is written there
                rows[name] = run_row(name, arguments.family, [*files, *images, *where], arguments.images, Path(folder))
        except Failed as error:
            failed += 1
            print(f"{name} failed:\n{error}", file=sys.stderr, flush=True)
            continue
        for text in rows[name].images[-1]["warnings"]:
            print(f"{name}: {text}", file=sys.stderr, flush=True)
        print(line(name, rows, arguments.steps), flush=True)
        if arguments.markdown:
            arguments.markdown.write_text(f"{about}\n\n{table(rows, arguments.steps)}\n", encoding="utf-8")
    print(f"\n{about}\n\n{table(rows, arguments.steps)}" if rows else "no row could be measured; see the errors above")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
