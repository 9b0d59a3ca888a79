"""Time training over many buckets: ordinary ones and equal_token_buckets, for the same images.

python -m benchmarks.buckets [--family NAME] [--method lora | full] [--rows NAME ...] [--buckets N ...]

The images have the aspect ratios of this many ordinary buckets, spread over all of them. Every row is a run of the
training script with a compiler cache of its own, which is empty when it starts. The first epoch meets every bucket and
is not timed; graphs and seconds of compiling count the whole run.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.full_size import full_size
from benchmarks.steps import AFTER, COMMON, machine, write_model
from sd_scripts.data.plan.blueprint import parse_resolution
from sd_scripts.data.plan.buckets import BucketRules, Size, bucket_resolutions
from sd_scripts.families.cards.registry import card_of
from sd_scripts.options.dataset import BucketOptions
from sd_scripts.settings.catalog import FAMILY_TITLES, METHOD_TITLES, script_for
from sd_scripts.testing import demo_images
from sd_scripts.tools.timed_run import Run, Stopped, timed_run

SMALL: dict[str, Any] = {
    "resolution": "384,384",
    "min_bucket_reso": 96,
    "max_bucket_reso": 1024,
    "bucket_reso_steps": 32,
    "mixed_precision": "no",
}
"""Options of all rows with --miniature."""
HEADINGS = (
    *("images' ratios", "equal_token_buckets", "row", "batch shapes", "tokens", "graphs", "recompiles", "breaks"),
    *("compile s", "first epoch s", "later step ms", "by shape"),
)


def ratios(options: dict[str, Any], count: int) -> list[Size]:
    """Return `count` of the ordinary buckets that these options make, spread from the tallest to the widest."""
    names = ("min_bucket_reso", "max_bucket_reso", "bucket_reso_steps")
    values = {name: options.get(name, getattr(BucketOptions, name)) for name in names}
    rules = BucketRules(resolution=parse_resolution(options["resolution"]), enable_bucket=True, **values)
    sizes = sorted(bucket_resolutions(rules), key=lambda size: size[0] / size[1])
    if not 2 <= count <= len(sizes):
        raise ValueError(f"--buckets: choose from 2 to {len(sizes)}, not {count}")
    return [sizes[round(n * (len(sizes) - 1) / (count - 1))] for n in range(count)]


def write_images(folder: Path, sizes: Sequence[Size]) -> Path:
    """Draw an image of each size with its caption into a subfolder; return `folder`."""
    inner, captions = folder / "1_shapes", demo_images.captions()
    inner.mkdir(parents=True, exist_ok=True)
    for number, size in enumerate(sizes):
        caption = captions[number % len(captions)]
        demo_images.draw(caption, size).save(inner / f"{number:02d}.png")
        (inner / f"{number:02d}.txt").write_text(caption, encoding="utf-8")
    return folder


def by_shape(run: Run, untimed: int) -> dict[str, float]:
    """Return the median milliseconds of a step by batch shape, without the first steps."""
    found, shape = defaultdict(list), ""
    for number, event in enumerate(run.of("step")):
        shape = event.get("shape", shape)  # reported where it changes
        if number >= untimed:
            found[shape].append(1000 * event["seconds"])
    return {shape: statistics.median(times) for shape, times in sorted(found.items())}


def line(family: str, count: int, equal: bool, row: str, run: Run) -> str:
    """Return a row of the table."""
    card, shapes = card_of(family), run.of("started")[0]["shapes"]
    tokens = sorted({card.plan.tokens(width, height, 1) for width, height in map(_sides, shapes)})
    times = by_shape(run, count)
    last = (run.of("compile") or [{"seconds": 0}])[-1]
    cells = [
        str(count),
        "on" if equal else "off",
        row,
        str(len(shapes)),
        f"{tokens[0]:,}" if len(tokens) == 1 else f"{tokens[0]:,} to {tokens[-1]:,}",
        *map(str, run.compiled.values()),
        f"{last['seconds']:.0f}",
        f"{sum(run.steps[:count]):.0f}",
        f"{statistics.median(times.values()):.1f}",
        f"{min(times.values()):.1f} to {max(times.values()):.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def _sides(shape: str) -> Size:
    """Return width and height of a batch shape such as 1024x768x1."""
    width, height, _ = shape.split("x")
    return int(width), int(height)


def details(name: str, run: Run, untimed: int) -> str:
    """Return the milliseconds of each shape in one line."""
    return f"{name}: " + ", ".join(f"{shape} {ms:.1f}" for shape, ms in by_shape(run, untimed).items())


def report(about: str, lines: Sequence[str], more: Sequence[str]) -> str:
    table = [f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|", *lines]
    return "\n".join(
        [about, "", *table, "", "Milliseconds of a step by batch shape:", "", *(f"- {each}" for each in more)]
    )


class BucketRuns:
    """A model and the runs that train it over many buckets."""

    def __init__(self, arguments: argparse.Namespace, flags: Sequence[str]) -> None:
        family, method, tiny = arguments.family, arguments.method, arguments.miniature
        module = full_size(family)
        self._folder = arguments.folder.resolve() / (f"{family}_narrow" if tiny else family)
        model = write_model(family, self._folder, miniature=tiny, narrow=True)
        files = {option: str(path) for option, path in model.files.items()}
        self._common = {**COMMON, **module.OPTIONS[method], **(SMALL if tiny else {}), **files, "enable_bucket": True}
        self._rows, self._script = module.ROWS[method], script_for(family, method).file
        self._epochs, self._flags = arguments.epochs, flags

    def run(self, count: int, row: str, *, equal: bool) -> Run:
        """Train on images of `count` aspect ratios. Stopped: the run failed."""
        images = write_images(self._folder / f"buckets{count}", ratios(self._common, count))
        steps = count * (1 + self._epochs)
        options = {**self._common, **self._rows[row], "equal_token_buckets": equal, "train_data_dir": str(images)}
        options["max_train_steps"] = steps + AFTER
        with tempfile.TemporaryDirectory(dir=self._folder) as temporary:
            cache = {"TORCHINDUCTOR_CACHE_DIR": f"{temporary}/compiled"}
            folder = Path(temporary) / "row"
            return timed_run(self._script, options, folder, steps, flags=self._flags, environment=cache)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--family", choices=FAMILY_TITLES, default=next(iter(FAMILY_TITLES)))
    parser.add_argument("--method", choices=METHOD_TITLES, default="lora")
    parser.add_argument("--rows", nargs="+", default=["compiled"], help="names of rows of the benchmark")
    parser.add_argument("--buckets", nargs="+", type=int, default=[8, 16, 41], help="how many aspect ratios")
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs, each with one step for each image")
    parser.add_argument("--markdown", type=Path, help="write the tables here too")
    parser.add_argument("--folder", type=Path, default=Path("benchmark"), help="for model files; they stay there")
    parser.add_argument("--miniature", action="store_true", help="a tiny model that needs the same number of graphs")
    arguments, flags = parser.parse_known_args(argv)
    try:
        script_for(arguments.family, arguments.method)
    except ValueError as error:
        print(f"--method: {error}", file=sys.stderr)
        return 2
    rows = full_size(arguments.family).ROWS[arguments.method]
    if arguments.epochs < 1:
        print("--epochs: must be at least 1", file=sys.stderr)
        return 2
    if unknown := [name for name in arguments.rows if name not in rows]:
        print(f"--rows: unknown row {', '.join(unknown)}; choose from {', '.join(rows)}", file=sys.stderr)
        return 2
    about = f"{FAMILY_TITLES[arguments.family]}. {machine()} {' '.join(flags)}".strip()
    lines: list[str] = []
    more: list[str] = []
    failed = 0
    try:
        runs = BucketRuns(arguments, flags)
        for count, row, equal in itertools.product(arguments.buckets, arguments.rows, (False, True)):
            name = f"{row}, {count} ratios" + (", equal tokens" if equal else "")
            try:
                run = runs.run(count, row, equal=equal)
            except Stopped as error:
                failed += 1
                print(f"{name} failed: {error.why}", file=sys.stderr, flush=True)
                continue
            lines.append(line(arguments.family, count, equal, row, run))
            more.append(details(name, run, count))
            print(lines[-1], flush=True)
            if arguments.markdown:
                arguments.markdown.write_text(report(about, lines, more) + "\n", encoding="utf-8")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n" + report(about, lines, more))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
