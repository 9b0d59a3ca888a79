"""Run presets on a full-size model with random weights, each within the memory of the GPU that it is made for.

python -m benchmarks.presets [--family NAME] [--presets PATTERN ...] [--steps 5] [--minutes 9] python -m
benchmarks.presets --presets "lora/*gb" "finetune/*16gb" python -m benchmarks.presets --plan

Each row is a run of the training script at 1024x1024, with everything that the preset sets: images and captions are
encoded for the caches, then the trainer trains until enough steps are timed. A preset whose name ends in 12gb may use
12 * 10^9 bytes, 93 % of what such a GPU has: the rest is for the driver and the desktop. Two things enforce that: the
run gets a gpu_memory_limit, and this program occupies all other memory of the GPU, so that the memory of CUDA and
its libraries counts too. Presets without a size may use the whole GPU. Rows are printed as they come.
"""

import argparse
import math
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast

from benchmarks.observed_run import ObservedRun, look_at_gpu, observed_run
from benchmarks.steps import AFTER, TINY, machine, write_model
from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.plan.epochs import BatchShape
from sd_scripts.families.cards.registry import preset_family
from sd_scripts.formats.toml_files import read_toml
from sd_scripts.planning.memory import MemoryPlan, plan_memory
from sd_scripts.settings.catalog import FAMILY_TITLES, script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Script, Settings
from sd_scripts.testing import demo_images
from sd_scripts.tools.timed_run import GIB, ROOT, WARM_UP, Stopped

FOLDER = ROOT / "presets"
METHODS = {"lora": "lora", "dreambooth": "full", "finetune": "full"}
"""Folder of a preset -> its training method."""
GB = 10**9
SIDE = 1024
WITHOUT_SAVING: dict[str, Any] = {"max_train_epochs": 0, "save_every_n_epochs": 0, "output_name": "preset"}
"""Options that override those of all presets."""
SMALL: dict[str, Any] = {**TINY, "max_bucket_reso": 128}
"""The same with --miniature."""
HEADINGS = (
    *("preset", "may use GB", "planned GiB", "GiB allocated, caching", "training", "GiB reserved", "GiB in use"),
    *("ms", "GiB RAM", "start s", "result"),
)


@dataclass(frozen=True, kw_only=True)
class Preset:
    name: str
    """Folder and file: lora/NAME_low_memory_6gb."""
    script: Script
    values: Mapping[str, Any]
    cap: int
    """Bytes of GPU memory that it may use; 0: all."""

    def settings(self) -> Settings:
        return from_values(self.script, {**self.values, **self.limit()})

    def plan(self, captions: int = len(demo_images.captions())) -> MemoryPlan | None:
        """Return the figures that the plan of a run expects, by default with the captions of the benchmark's images."""
        settings = self.settings()
        shape = BatchShape(extent=Extent(SIDE, SIDE), images=settings.value("train_batch_size"))
        return plan_memory(settings, [shape], captions=captions)

    def limit(self) -> dict[str, Any]:
        return {"gpu_memory_limit": self.cap / GIB} if self.cap else {}

    def options(self, *, miniature: bool) -> dict[str, Any]:
        """Return the options of its run, without files and folders."""
        values = {**self.values, **WITHOUT_SAVING, **self.limit()}
        if not miniature:
            return values
        if values.get("blocks_to_swap"):
            values["blocks_to_swap"] = 2
        if values.get("compile"):
            values |= {"compile_backend": "eager", "compile_mode": "default"}
        if values.get("mixed_precision") == "fp16":
            values["mixed_precision"] = "bf16"
        return values | SMALL


def presets_of(family: str) -> list[Preset]:
    """Return the presets of a family: by folder, those for the smallest GPU first."""
    presets = [
        Preset(
            name=f"{folder}/{file.stem}",
            script=script_for(family, method),
            values=read_toml(file),
            cap=cap_of(file.stem),
        )
        for folder, method in METHODS.items()
        for file in sorted((FOLDER / folder).glob("*.toml"))
        if preset_family(file.stem) == family
    ]
    return sorted(
        presets, key=lambda preset: (list(METHODS).index(preset.name.partition("/")[0]), preset.cap or sys.maxsize)
    )


def cap_of(name: str) -> int:
    """Return the bytes of GPU memory that a preset of this name may use; 0: all."""
    size = re.search(r"_(\d+)gb$", name)
    return int(size[1]) * GB if size else 0


@contextmanager
def only_left(cap: int) -> Iterator[None]:
    """Hold the GPU's memory but for `cap` bytes; 0 leaves all of it."""
    import torch

    if not cap or not torch.cuda.is_available():
        yield
        return
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(max(free - cap, 0), dtype=torch.uint8, device="cuda")
    try:
        yield
    finally:
        del held
        torch.cuda.empty_cache()


def line(preset: Preset, run: ObservedRun | None = None, result: str = "", used_before: float = 0.0) -> str:
    """Return a row of the table. `used_before`: bytes of the GPU that others used."""
    planned = preset.plan()
    cells = [
        preset.name,
        f"{preset.cap / GB:.0f} ({preset.cap / GIB:.2f} GiB)" if preset.cap else "all",
        f"{planned.in_use / GIB:.2f}" if planned else "",
    ]
    if run:
        cells += [
            _gib(run.allocated_caching),
            _gib(run.allocated),
            _gib(max((event.get("reserved", 0) for event in run.events), default=0)),
            _gib(max((used for _, used in run.gpu), default=used_before) - used_before),
            f"{1000 * statistics.median(run.timed):.0f}" if run.timed else "",
            f"{run.resident / GIB:.1f}",
            f"{run.start:.0f}" if run.steps else "",
        ]
    cells += [""] * (len(HEADINGS) - 1 - len(cells))
    return f"| {' | '.join([*cells, result])} |"


def _gib(amount: float) -> str:
    return f"{amount / GIB:.2f}" if amount else ""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """A run of a preset within its limit."""

    run: ObservedRun
    failure: str = ""
    """Why it ended early; empty if it trained."""
    used_before: float = 0.0
    """Bytes of the GPU that others used."""

    @property
    def in_use(self) -> float:
        """Bytes of the GPU's memory that other programs see; 0: not seen."""
        return max((used for _, used in self.run.gpu), default=self.used_before) - self.used_before


class Rows:
    """Runs presets of a family."""

    def __init__(self, folder: Path, files: Mapping[str, Path], steps: int, *, miniature: bool, warm_up: int = WARM_UP):
        self._folder, self._steps, self._warm_up, self._miniature = folder, steps, warm_up, miniature
        self._files = {option: str(path) for option, path in files.items()}
        self._images = [(64, 64) if miniature else (SIDE, SIDE)]

    def run(self, preset: Preset) -> tuple[str, bool]:
        """Return the row of a preset, and whether it trained."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            # disk caches are stored next to them
            observed = self.observe(preset, self.write_images(Path(folder)))
        result = f"failed: {observed.failure}" if observed.failure else "trains"
        return line(preset, observed.run, result, observed.used_before), not observed.failure

    def write_images(self, folder: Path) -> Path:
        """Return the folder of drawn images below `folder`; they are written if they are not there."""
        images = folder / "images"
        return images if images.exists() else demo_images.write_images(images, self._images)

    def observe(self, preset: Preset, images: Path, most_seconds: float = math.inf) -> Observed:
        """Run a preset on these images, for `most_seconds` in all."""
        last = self._warm_up + self._steps
        options = {
            **preset.options(miniature=self._miniature),
            **self._files,
            "train_data_dir": str(images),
            "max_train_steps": last + AFTER,
        }
        with tempfile.TemporaryDirectory(dir=self._folder) as folder, only_left(preset.cap):
            before = look_at_gpu()
            used = before[1] if before else 0.0
            try:
                run = observed_run(
                    *(preset.script.file, options, Path(folder) / "row", last),
                    warm_up=self._warm_up,
                    most_seconds=most_seconds,
                )
            except Stopped as error:
                why = "out of memory" if "out of memory" in error.why else error.why
                return Observed(run=cast(ObservedRun, error.run), failure=why, used_before=used)
        return Observed(run=run, used_before=used)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("--family", choices=FAMILY_TITLES, default=next(iter(FAMILY_TITLES)))
    made.add_argument("--presets", nargs="*", metavar="PATTERN", help="such as lora/*gb; all where none is given")
    made.add_argument("--steps", type=int, default=5, help="timed steps of each run, after the warm-up")
    made.add_argument("--minutes", type=float, default=0.0, help="start no further row after this many; 0 is unlimited")
    made.add_argument("--folder", type=Path, default=Path("benchmark"), help="for model files; they stay there")
    made.add_argument("--plan", action="store_true", help="run nothing: show the plan's figures")
    made.add_argument("--miniature", action="store_true", help="try this program itself on a tiny model")
    return made


def main(argv: list[str] | None = None) -> int:
    arguments, began = parser().parse_args(argv), time.monotonic()
    known = presets_of(arguments.family)
    patterns = arguments.presets or ["*"]
    chosen = [preset for preset in known if any(fnmatch(preset.name, pattern) for pattern in patterns)]
    if not chosen:
        print(
            f"--presets: none fits {' '.join(patterns)}; there are {', '.join(p.name for p in known)}", file=sys.stderr
        )
        return 2
    head = f"| {' | '.join(HEADINGS)} |\n{'|---' * len(HEADINGS)}|"
    if arguments.plan:
        print(head, *map(line, chosen), sep="\n")
        return 0
    folder, failed = arguments.folder.resolve() / arguments.family, 0
    files = write_model(arguments.family, folder, miniature=arguments.miniature).files
    rows = Rows(folder, files, arguments.steps, miniature=arguments.miniature)
    print(f"{machine()}\n\n{head}", flush=True)
    for number, preset in enumerate(chosen):
        if arguments.minutes and time.monotonic() - began > 60 * arguments.minutes:
            print(f"\nLeft for another call: {' '.join(each.name for each in chosen[number:])}")
            return 1
        row, trained = rows.run(preset)
        failed += not trained
        print(row, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
