"""Search the fastest way to train within 6, 8, 12, 16, 24 and 32 GB, and measure the best few at full size.

python -m benchmarks.preset_search --plan-only [--family NAME] [--methods lora finetune] [--gb 8 12] [--best 5]
python -m benchmarks.preset_search [--family NAME] [--minutes 9] [--markdown FILE]

For each limit all ways to save memory are combined (checkpointing, activation_memory_budget, quantized weights, swapped
blocks, optimizer, updates during the backward pass) with the other options of the preset for it, or for the next
smaller GPU. Those that the plan expects to fit are ranked by the time that is expected of a step. Then the best of each
limit are run like presets in benchmarks.presets, with random weights and within the limit: first the fastest, then the
preset's own, then others. Rows are printed as they come, and the table is written after each.

Images and captions are cached on disk by the first row that needs them, and not measured. For several GPUs start one
process for each family, with CUDA_VISIBLE_DEVICES, and the same --folder.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from time import monotonic

from benchmarks.full_size import full_size
from benchmarks.preset_search.combinations import Combination, Search
from benchmarks.preset_search.step_time import MeasuredSteps
from benchmarks.presets import GB, METHODS, Observed, Preset, Rows, presets_of
from benchmarks.steps import machine, spelled, write_short_model
from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.planning.memory import TRAINING
from sd_scripts.settings.catalog import FAMILY_TITLES
from sd_scripts.settings.quantization import quantization_of
from sd_scripts.tools.timed_run import GIB

LIMITS = (6, 8, 12, 16, 24, 32)
"""GB of memory of the GPUs that presets are made for."""
HEADINGS = (
    *("method", "GB", "combination", "planned GiB", "in use GiB", "planned training GiB", "training GiB"),
    *("planned ms", "ms", "ms an image", "min to max", "GiB RAM", "start s", "result"),
)
HEAD = f"| {' | '.join(HEADINGS)} |\n{'|---' * len(HEADINGS)}|"
ROW_SECONDS = 100.0
"""A row that takes longer is ended: it would be no preset."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A combination for a limit, and its run."""

    folder: str
    """Of its preset: lora, finetune."""
    combination: Combination
    is_preset: bool = False
    observed: Observed | None = None
    """None: not run."""

    @property
    def seconds(self) -> float:
        """Return the measured time of a step; infinite if it did not train."""
        run = self.observed.run if self.observed and not self.observed.failure else None
        return statistics.median(run.timed) if run else float("inf")

    def line(self) -> str:
        each, observed = self.combination, self.observed
        settings = each.preset.settings()
        images = settings.value("train_batch_size") * settings.value("gradient_accumulation_steps")
        cells = [
            self.folder,
            f"{each.preset.cap / GB:.0f}",
            spelled({name: each.chosen[name] for name in each.chosen if name != "optimizer_args"})
            + (" (the preset)" if self.is_preset else ""),
            f"{each.plan.in_use / GIB:.2f}",
            _gib(observed.in_use) if observed else "",
            f"{each.plan.phases[TRAINING] / GIB:.2f}",
            _gib(observed.run.allocated) if observed else "",
            f"{1000 * each.seconds:.0f}",
        ]
        if observed and not observed.failure:
            times = observed.run.timed
            cells += [
                f"{1000 * self.seconds:.1f}",
                f"{1000 * self.seconds / images:.1f}",
                f"{1000 * min(times):.1f} to {1000 * max(times):.1f}",
                f"{observed.run.resident / GIB:.1f}",
                f"{observed.run.start:.1f}",
                "trains",
            ]
        elif observed:
            cells += ["", "", "", f"{observed.run.resident / GIB:.1f}", "", f"failed: {observed.failure}"]
        else:
            cells += ["", f"({1000 * each.seconds / images:.0f})", "", "", "", "planned"]
        return f"| {' | '.join(cells)} |"


def _gib(amount: float) -> str:
    return f"{amount / GIB:.2f}" if amount else ""


def preset_for(presets: Sequence[Preset], folder: str, start: str, gb: int) -> Preset | None:
    """Return the preset for a GPU, or for the next smaller one, else for the smallest; with the limit of the GPU."""
    known = [each for each in presets if each.name.startswith(f"{folder}/{start}_low_memory_")]
    smaller = [each for each in known if each.cap <= gb * GB]
    found = smaller[-1] if smaller else next(iter(known), None)
    return replace(found, cap=gb * GB) if found else None


def candidates(
    presets: Sequence[Preset], start: str, measured: MeasuredSteps, methods: Sequence[str], limits: Sequence[int]
) -> list[list[Row]]:
    """Return the rows of each method and limit: the preset's own, then the others, the fastest first."""
    made = []
    for folder in methods:
        for gb in limits:
            preset = preset_for(presets, folder, start, gb)
            if preset is None:
                continue
            search = Search(preset=preset, measured=measured)
            own = search.own() if preset in presets else None
            made.append([Row(folder=folder, combination=own, is_preset=True)] if own else [])
            made[-1] += [Row(folder=folder, combination=each) for each in search.ranked()]
    return made


def chosen(rows: Sequence[Row], best: int) -> list[Row]:
    """Return the rows of a limit to measure: the fastest, the preset's own, the next ones, and one that compiles."""
    own = [row for row in rows if row.is_preset]
    plain = [row for row in rows if not row.is_preset and not row.combination.compiled][:best]
    compiled = [row for row in rows if not row.is_preset and row.combination.compiled][:1]
    return [*plain[:1], *own, *plain[1:], *compiled]


class Measurements:
    """The rows measured so far, and their table."""

    def __init__(self, about: str, markdown: Path | None):
        self._about, self._markdown = about, markdown
        self.rows: list[Row] = []

    def add(self, row: Row) -> None:
        print(row.line(), flush=True)
        self.rows.append(row)
        if self._markdown:
            write_whole(self._markdown, self.report())

    def report(self) -> str:
        """Return the table: by method and limit, the fastest first."""
        folders = list(METHODS)
        ordered = sorted(
            self.rows, key=lambda row: (folders.index(row.folder), row.combination.preset.cap, row.seconds)
        )
        return "\n".join([self._about, "", HEAD, *(row.line() for row in ordered), ""])

    def known(self, row: Row) -> Observed | None:
        """Return the run of the same options within a limit that is not larger."""
        for other in self.rows:
            same = (other.folder, other.combination.run) == (row.folder, row.combination.run)
            if same and other.observed and other.combination.preset.cap <= row.combination.preset.cap:
                return None if other.observed.failure else other.observed
        return None


def measure(rows: Sequence[Row], runs: Rows, folder: Path, found: Measurements, until: float) -> list[Row]:
    """Measure rows until that time; return those that are left. `folder`: for images and what is cached of them."""
    for number, row in enumerate(rows):
        left = until - monotonic()
        if left <= 0:
            return list(rows[number:])
        preset = row.combination.preset
        encoders = quantization_of(preset.settings()).encoders or "exact"  # their captions are cached apart
        images = runs.write_images(folder / f"captions_{encoders}")
        observed = found.known(row) or runs.observe(preset, images, min(ROW_SECONDS, left))
        if observed.failure and monotonic() >= until:
            return list(rows[number:])
        found.add(replace(row, observed=observed))
    return []


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("--family", choices=FAMILY_TITLES, default=next(iter(FAMILY_TITLES)))
    made.add_argument("--size", default="", help="of the model, where there are several: 9b of FLUX.2 klein")
    made.add_argument("--presets", metavar="START", help="how the presets' names begin; the family's name if left out")
    made.add_argument("--methods", nargs="+", choices=[*METHODS], default=["lora"], help="folders of presets")
    made.add_argument("--gb", nargs="+", type=int, default=list(LIMITS), metavar="GB", help="memory of the GPUs")
    made.add_argument("--best", type=int, default=3, help="rows of each limit that do not compile; one compiles")
    made.add_argument("--steps", type=int, default=5, help="timed steps of each run, after the warm-up")
    made.add_argument("--warm_up", type=int, default=3, help="steps before the timed ones")
    made.add_argument("--minutes", type=float, default=60.0, help="end after this time; a row in progress is ended")
    made.add_argument("--folder", type=Path, default=Path("benchmark"), help="for model files; they stay there")
    made.add_argument("--markdown", type=Path, help="write the table here too")
    made.add_argument(
        "--plan-only", action="store_true", help="run nothing: list the combinations with the plan's figures"
    )
    made.add_argument("--miniature", action="store_true", help="try this program itself on a tiny model")
    return made


def main(argv: list[str] | None = None) -> int:
    arguments, began = parser().parse_args(argv), monotonic()
    start = arguments.presets or arguments.family
    measured = getattr(full_size(arguments.family, arguments.size), "MEASURED_STEPS", None)
    if measured is None:
        print(f"--family: no measured steps of {FAMILY_TITLES[arguments.family]} are known", file=sys.stderr)
        return 2
    cells = candidates(presets_of(arguments.family), start, measured, arguments.methods, arguments.gb)
    if not any(cells):
        print(f"--presets: none of {start} for these methods; see the folder presets", file=sys.stderr)
        return 2
    if arguments.plan_only:
        print(HEAD, *(row.line() for rows in cells for row in chosen(rows, arguments.best)), sep="\n")
        return 0
    folder = arguments.folder.resolve() / f"{arguments.family}{arguments.size}"
    model = write_short_model(arguments.family, folder, miniature=arguments.miniature, size=arguments.size)
    folder.mkdir(parents=True, exist_ok=True)
    runs = Rows(*(folder, model.files, arguments.steps), miniature=arguments.miniature, warm_up=arguments.warm_up)
    about = machine()
    found = Measurements(about, arguments.markdown)
    turns = zip_longest(*(chosen(rows, arguments.best) for rows in cells))
    rows = [row for turn in turns for row in turn if row]
    print(f"{about}\n\n{HEAD}", flush=True)
    left = measure(rows, runs, folder, found, began + 60 * arguments.minutes)
    print("\n" + found.report())
    if left:
        print("Left for another call:", *(row.line() for row in left), sep="\n")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
