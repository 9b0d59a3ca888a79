"""Time training runs of a full-size model with random weights: the training scripts, as users start them.

python -m benchmarks.steps [--family NAME] [--method lora | full] [--rows NAME ...] [--steps 30] [--rounds 2]
python -m benchmarks.steps --rows eager compiled --steps 200 --curve --learning_rate 4e-4
python -m benchmarks.steps --rows eager compiled graphs --turns 6
python -m benchmarks.steps --rows graphs --processes 1 2 --rounds 2
python -m benchmarks.steps --resolution 1328,1328
python -m benchmarks.steps --method full --rows eager --optimizer_type bitsandbytes.optim.AdamW8bit
python -m benchmarks.steps --family wan --frames 81 --resolution 832,480
python -m benchmarks.steps --family wan --frames 81 --task t2v-A14B --timestep_sampling shift --discrete_flow_shift 3 \\
    --dit_high_noise FILE --offload_inactive_dit

Each row is a run of its own, one after another: model files are read, drawn images and their captions are cached, and
the trainer trains until enough steps are timed; then it is ended, so that it saves nothing. All numbers come from the
run's events and from nvidia-smi. Rows share a compiler cache, which is empty when the benchmark starts.
With --turns all rows start together and train in turn while the others are stopped: for rows that wait for a CPU whose
speed varies. All of them must fit on the GPU, and their first steps do not represent a row alone.
With --processes each row is run with each of these numbers of GPUs, in turn; with --fsdp they shard the model.
With --frames the rows train on drawn clips of this length instead of images.
"""

import argparse
import contextlib
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.full_size import full_size
from benchmarks.full_size.common.weights import operations_per_image
from benchmarks.observed_run import ObservedRun, ObservedRunning, launch_processes, observed_run
from benchmarks.side_by_side import supported, time_in_turns
from sd_scripts.data.plan.blueprint import parse_resolution
from sd_scripts.families.cards.family_card import DENOISER
from sd_scripts.families.cards.registry import card_of, module_of
from sd_scripts.formats.toml_files import read_toml, write_toml
from sd_scripts.machine.nvidia import first_gpu
from sd_scripts.settings.catalog import FAMILY_TITLES, METHOD_TITLES, script_for
from sd_scripts.settings.command_line import given_flags
from sd_scripts.testing import clips, demo_images
from sd_scripts.tools.timed_run import GIB, WARM_UP, Stopped

TINY = {"resolution": "64,64", "min_bucket_reso": 64, "bucket_reso_steps": 32, "max_data_loader_n_workers": 0}
"""Options of all rows with --miniature."""
AFTER = 50
"""Steps of the schedule after the timed ones and the untimed steps of each turn, so that no run ends."""
SIZES = ((1024, 1024), (832, 1216))
"""Width and height of the drawn images in turn. Without buckets all of them are cropped to the resolution."""
COMMON: dict[str, Any] = {
    "caption_extension": ".txt",
    "resolution": "1024,1024",
    "max_bucket_reso": 2048,
    "cache_latents": True,
    "cache_text_encoder_outputs": True,
    "mixed_precision": "bf16",
    "optimizer_type": "AdamW",
    "lr_scheduler": "constant",
    "seed": 1,
    "output_name": "benchmark",
}
"""Options of all families, methods and rows."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """Inputs of a benchmark: files by the options that name them, and a folder of images."""

    files: dict[str, Path]
    images: Path


def cpu_score() -> float:
    """Return how many millions of loop iterations Python does per second in one thread: it launches the kernels."""

    def seconds(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            pass
        return time.perf_counter() - began

    return 2 / min(seconds(2_000_000) for _ in range(3))


def machine() -> str:
    """Return the GPU, PyTorch, and the CPU with its speed in one thread and its load."""
    found = first_gpu()
    gpu = f"{found.name}, driver {found.driver}" if found.driver else "no GPU"
    cpu = platform.processor()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    speed = f"{os.cpu_count()} cores, {cpu_score():.0f} million loop iterations per second in one thread{load}"
    return f"{gpu}; PyTorch {version('torch')}; {cpu} ({speed})."


def spelled(options: dict[str, Any]) -> str:
    """Return options as people write them: `compile, blocks_to_swap = 18`."""
    return ", ".join(name if value is True else f"{name} = {value}" for name, value in options.items())


def line(name: str, options: dict[str, Any], runs: list[ObservedRun], operations: float = 0.0) -> str:
    """Return a row of the table, over all rounds; the medians of the single rounds are listed next to the common one.

    `operations`: floating-point operations for each image of a step; 0: not known.
    """
    times = sorted(1000 * seconds for run in runs for seconds in run.timed)
    median, last = statistics.median(times), runs[-1]
    rounds = ", ".join(f"{1000 * statistics.median(part):.1f}" for run in runs for part in run.parts)
    cpu, steps = (sum(run.cpu[n] for run in runs) for n in range(2))
    gpu = [seen for run in runs for seen in run.gpu]
    cells = [
        name,
        spelled(options),
        f"{median:.1f}",
        f"{statistics.fmean(times):.1f}",
        rounds,
        f"{times[0]:.1f} to {times[int(len(times) * 0.9)]:.1f}",
        f"{1000 * last.images_per_step / median:.2f}",
        f"{last.images_per_step * operations / median / 1e9:.0f}" if operations else "",
        f"{max(run.allocated for run in runs) / GIB:.2f}",
        f"{max(run.allocated_caching for run in runs) / GIB:.2f}",
        f"{max(used for _, used in gpu) / GIB:.2f}" if gpu else "",
        f"{statistics.fmean(busy for busy, _ in gpu):.0f} %" if gpu else "",
        f"{1000 * cpu / steps:.0f}" if steps else "",
        f"{max(run.resident for run in runs) / GIB:.1f}",
        f"{runs[0].steps[0]:.1f}",
        f"{runs[0].start:.1f}",
        f"{runs[0].recording:.1f}",
        *map(str, last.compiled.values()),
        f"{statistics.fmean(last.losses[-8:]):.4f}",
    ]
    return f"| {' | '.join(cells)} |"


HEADINGS = (
    *(
        "row",
        "options",
        "median ms",
        "mean ms",
        "of rounds",
        "min to p90",
        "images/s",
        "TFLOP/s",
        "GiB allocated",
        "GiB caching",
        "GiB in use",
        "GPU busy",
        "CPU ms",
    ),
    *("GiB RAM", "first s", "start s", "recording s", "graphs", "recompiles", "breaks", "loss"),
)


def table(rows: dict[str, dict[str, Any]], results: dict[str, list[ObservedRun]], operations: float = 0.0) -> str:
    lines = [f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|"]
    return "\n".join([*lines, *(line(name, rows[name], runs, operations) for name, runs in results.items())])


def curve_table(losses: dict[str, list[float]], part: int = 20) -> str:
    """Return mean losses of `part` steps at a time, one column for each row."""
    count = min(map(len, losses.values()))
    lines = [f"| steps | {' | '.join(losses)} |", "|---" * (len(losses) + 1) + "|"]
    for start in range(0, count, part):
        means = [statistics.fmean(each[start : min(start + part, count)]) for each in losses.values()]
        lines.append(f"| {start + 1} to {min(start + part, count)} | " + " | ".join(f"{m:.4f}" for m in means) + " |")
    return "\n".join(lines)


def write_model(
    family: str, folder: Path, *, miniature: bool, size: str = "", narrow: bool = False, **parts: int
) -> Model:
    """Write a model and images below `folder`, if they are not there from an earlier call. A miniature that is only
    `narrow` needs the same number of graphs as the full-size model. `parts` is passed to the family's write_files."""
    if miniature:
        tiny = module_of(family, "tiny")
        write = getattr(tiny, "write_narrow", tiny.write_miniature)  # of a family whose blocks differ
        made = (write if narrow else tiny.write_miniature)(folder)
        return Model(files=made.files, images=made.data_dir)
    done, images = folder / "files.toml", folder / "images"
    if not done.exists():
        written = full_size(family, size).write_files(folder, **parts)
        files = {option: str(path) for option, path in written.items()}
        demo_images.write_images(images, SIZES)
        write_toml(done, files)
    return Model(files={option: Path(path) for option, path in read_toml(done).items()}, images=images)


def write_short_model(family: str, folder: Path, *, miniature: bool, size: str = "") -> Model:
    """Write a model as write_model does, into a folder of its own, with a short text encoder if the family has one:
    no step sees it."""
    short = getattr(full_size(family, size), "SHORT_ENCODER", {})
    folder = folder.with_name(f"{folder.name}_short_encoder") if short else folder
    return write_model(family, folder, miniature=miniature, size=size, **short)


def write_clips(family: str, folder: Path, size: tuple[int, int], frames: int) -> Path:
    """Write clips of a size (width, height) at the frame rate of a family of clips, if they are not there; return their
    folder."""
    facts = card_of(family).clips
    assert facts is not None
    width, height = size
    images = folder / f"clips_{width}x{height}x{frames}"
    return images if images.exists() else clips.write_clips(images, size, frames, round(facts.fps), count=2)


class Benchmark:
    """Runs of the rows of a family and a method, and the observations of them."""

    def __init__(self, arguments: argparse.Namespace, flags: Sequence[str], rows: dict[str, dict[str, Any]]) -> None:
        family, method = arguments.family, arguments.method
        module = full_size(family, arguments.size)
        self.folder = arguments.folder.resolve() / f"{family}{arguments.size}"
        write = write_short_model if arguments.frames > 1 else write_model
        model = write(family, self.folder, size=arguments.size, miniature=arguments.miniature)
        files = {option: str(path) for option, path in model.files.items()}
        self._own = COMMON | module.OPTIONS[method]
        self._script, self._flags, self._frames = script_for(family, method), flags, arguments.frames
        self._size = self._size_of_flags()
        if self._frames > 1:
            images = write_clips(family, self.folder, self._size, self._frames)
            model = Model(files=model.files, images=images)
            self._own |= {"target_frames": str(self._frames)}
        self._common: dict[str, Any] = (
            self._own | files | {"train_data_dir": str(model.images)} | (TINY if arguments.miniature else {})
        )
        self._launchers: dict[str, list[str]] = {}
        """Row -> what starts its processes."""
        self._rows: dict[str, dict[str, Any]] = {}
        for name, count in ((name, count) for name in rows for count in arguments.processes):
            row = name if count == 1 else f"{name} on {count} GPUs"
            self._rows[row], self._launchers[row] = rows[name], launch_processes(count, fsdp=arguments.fsdp)
        self._steps, self._warm_up, self._curve, self._markdown = (
            arguments.steps,
            arguments.warm_up,
            arguments.curve,
            arguments.markdown,
        )
        self._about = machine()
        self._operations = 0 if arguments.miniature else self._counted(module, method)
        self.results: dict[str, list[ObservedRun]] = {}
        self.failed: list[str] = []

    def _size_of_flags(self) -> tuple[int, int]:
        """Return width and height of the resolution; 0, 0 if it is invalid, which the runs report."""
        given = given_flags(self._script, self._flags).values.get("resolution", self._own["resolution"])
        try:
            return parse_resolution(str(given), "resolution")
        except ValueError:
            return 0, 0

    def _counted(self, module: Any, method: str) -> int:
        """Return the operations of a training step for each image or clip; 0 if the family does not define them, or
        the resolution is invalid."""
        if not hasattr(module, "predict") or self._size == (0, 0):
            return 0
        learns = method == "full"
        predict = partial(module.predict, frames=self._frames) if self._frames > 1 else module.predict
        return operations_per_image(module.modules()[DENOISER], predict, *self._size, learns=learns)

    def in_rounds(self, rounds: int) -> None:
        """Time rows sequentially."""
        for name in [name for _ in range(rounds) for name in self._rows]:
            if name in self.failed:
                continue
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                last = self._warm_up + self._steps
                try:
                    run = observed_run(
                        *(self._script.file, self._options(name), Path(folder) / name, last),
                        flags=self._flags,
                        launcher=self._launchers[name],
                        warm_up=self._warm_up,
                    )
                except Stopped as error:
                    self._tell_failed(name, error)
                    continue
            self.results.setdefault(name, []).append(run)
            print(line(name, self._rows[name], self.results[name], self._operations), flush=True)
            self._write_markdown()

    def in_turns(self, turns: int) -> None:
        """Time rows side by side."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            runs = {
                name: ObservedRunning(
                    self._script.file, self._options(name, turns), Path(folder) / name, flags=self._flags
                )
                for name in self._rows
            }
            timed = time_in_turns(runs, self._steps, turns, failed=self._tell_failed)
        self.results = {name: [run] for name, run in timed.items()}
        if timed:
            self._write_markdown()

    def report(self) -> str:
        text = f"{self._about}\n\n{spelled(self._own)}\n\n{table(self._rows, self.results, self._operations)}\n"
        if self._curve:
            text += "\n" + curve_table({name: runs[-1].losses for name, runs in self.results.items()}) + "\n"
        return text

    def _options(self, name: str, turns: int = 0) -> dict[str, Any]:
        return self._common | self._rows[name] | {"max_train_steps": self._warm_up + self._steps + (turns + 1) * AFTER}

    def _tell_failed(self, name: str, error: Stopped) -> None:
        self.failed.append(name)
        print(f"{name} failed:\n{error}", file=sys.stderr, flush=True)

    def _write_markdown(self) -> None:
        if self._markdown:
            self._markdown.write_text(self.report())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--family", choices=FAMILY_TITLES, default=next(iter(FAMILY_TITLES)))
    parser.add_argument("--size", default="", help="of the model, where there are several: 9b of FLUX.2 klein")
    parser.add_argument("--method", choices=METHOD_TITLES, default="lora")
    parser.add_argument("--rows", nargs="*", help="names of rows; all where none is given")
    parser.add_argument("--steps", type=int, default=30, help="timed steps of each run, after the warm-up")
    parser.add_argument("--warm_up", type=int, default=WARM_UP, help="steps before the timed ones, without --turns")
    parser.add_argument("--rounds", type=int, default=1, help="times that all rows take turns")
    parser.add_argument(
        "--turns", type=int, default=0, help="start all rows together, and time each in this many turns"
    )
    parser.add_argument(
        "--processes", type=int, nargs="+", default=[1], metavar="N", help="GPUs of a run; 1 and 2: each row with both"
    )
    parser.add_argument("--fsdp", action="store_true", help="shard the model over the processes (FSDP2)")
    parser.add_argument("--curve", action="store_true", help="compare also how the losses of the rows fall")
    parser.add_argument("--markdown", type=Path, help="write the tables here too")
    parser.add_argument("--frames", type=int, default=1, help="train on clips of this length")
    parser.add_argument("--folder", type=Path, default=Path("benchmark"), help="for model files; they stay there")
    parser.add_argument("--miniature", action="store_true", help="try the benchmark itself on a tiny model")
    arguments, flags = parser.parse_known_args(argv)
    try:
        script_for(arguments.family, arguments.method)
    except ValueError as error:
        print(f"--method: {error}", file=sys.stderr)
        return 2
    try:
        module = full_size(arguments.family, arguments.size)  # imports torch, which --help should not wait for
    except ModuleNotFoundError:
        print(
            f"--size: no {arguments.size} of {FAMILY_TITLES[arguments.family]} is known; leave it out", file=sys.stderr
        )
        return 2
    rows: dict[str, dict[str, Any]] = module.ROWS[arguments.method]
    wanted = arguments.rows or list(rows)
    if unknown := [name for name in wanted if name not in rows]:
        print(f"--rows: unknown row {', '.join(unknown)}; choose from {', '.join(rows)}", file=sys.stderr)
        return 2
    if arguments.turns and not supported():
        print("--turns: runs cannot be stopped for a while on Windows; use --rounds", file=sys.stderr)
        return 2
    if arguments.turns and set(arguments.processes) != {1}:
        print("--turns: runs of several processes cannot be stopped for a while; use --rounds", file=sys.stderr)
        return 2
    if arguments.frames > 1 and card_of(arguments.family).clips is None:
        print(f"--frames: {FAMILY_TITLES[arguments.family]} trains on images; leave it out", file=sys.stderr)
        return 2
    benchmark = Benchmark(arguments, flags, {name: rows[name] for name in wanted})
    with tempfile.TemporaryDirectory(dir=benchmark.folder) as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        if arguments.turns:
            benchmark.in_turns(arguments.turns)
        else:
            benchmark.in_rounds(arguments.rounds)
    print("\n" + benchmark.report() if benchmark.results else "no row could be measured; see the errors above")
    print(f"The model files stay in '{benchmark.folder}' for the next call; delete them when you need the space.")
    return 1 if benchmark.failed else 0


if __name__ == "__main__":
    sys.exit(main())
