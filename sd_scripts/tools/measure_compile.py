"""Measure on this machine what torch.compile is worth for your model, images and settings.

python -m sd_scripts.tools.measure_compile --config_file run.toml [--variants eager default ...] [--steps 20]

Each variant trains in a process of its own, with your settings but its own compile options, until enough steps are
timed; nothing is saved. Compiled variants begin with an empty compiler cache and once more with a full one.
Measurements are remembered: the plan of the next run (--plan, and the page next to Start) shows when compiling pays
off.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.toml_files import read_toml
from sd_scripts.formats.words import duration, shortened
from sd_scripts.machine.measurements import RESULT, Measurement, remember
from sd_scripts.machine.nvidia import CPU, first_gpu
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.generating.sampling import SampleOptions
from sd_scripts.options.launch import LaunchOptions
from sd_scripts.options.logging import LoggingOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.saving import HuggingFaceOptions, SavingOptions
from sd_scripts.options.training import ResumeOptions, TrainingOptions
from sd_scripts.planning.compile_choice import CANDIDATES
from sd_scripts.planning.run_plan import RunPlan, plan_run
from sd_scripts.planning.speeds import conditions
from sd_scripts.planning.text import pays
from sd_scripts.runs import tool
from sd_scripts.runs.exit_codes import MISTAKE
from sd_scripts.runs.reporter import Progress, Reporter
from sd_scripts.settings import preflight
from sd_scripts.settings.catalog import FAMILY_TITLES, METHOD_TITLES, script_for
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from sd_scripts.tools.timed_run import GIB, WARM_UP, Run, Stopped, timed_run

VARIANTS: dict[str, dict[str, Any]] = {
    "eager": {},
    "default": {"compile": True},
    **{mode: {"compile": True, **CANDIDATES[mode]} for mode in ("reduce-overhead", "max-autotune-no-cudagraphs")},
    "dynamic": {"compile": True, "compile_dynamic": "true"},
    "checkpointed": {"gradient_checkpointing": True},
    "checkpointed default": {"gradient_checkpointing": True, "compile": True},
    "budget 0.5": {"compile": True, "activation_memory_budget": 0.5},
    "budget 0": {"compile": True, "activation_memory_budget": 0.0},
    "swapped": {"gradient_checkpointing": True, "compile": True, "blocks_to_swap": 18},
}
"""Name -> options that replace the compile options and REPLACED in the settings. The last five save memory."""
REPLACED = ("gradient_checkpointing", "activation_memory_budget", "num_processes")
LEFT_OUT = (SavingOptions, SampleOptions, ResumeOptions, LoggingOptions, HuggingFaceOptions)
"""Groups of options that do not affect speed, and write or send something."""
AFTER = 50
"""Steps of the schedule after the timed ones, so that the end of training is not timed."""
WARM_STEPS = 2
"""Steps with a full compiler cache."""
LARGEST_STEPS = 100_000
FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Row:
    """The measurement of a variant."""

    variant: str
    failed: str = ""
    """Why it could not be measured; else empty."""
    options: Mapping[str, Any]
    seconds: Mapping[str, float]
    """Batch shape -> median seconds of a step."""
    fastest: float = 0.0
    slowest: float = 0.0
    """The 90th percentile."""
    first: float = 0.0
    """Seconds of the first step with an empty compiler cache."""
    first_warm: float | None = None
    """The same with a full one; None for a variant that compiles nothing."""
    gpu_bytes: int = 0
    graphs: int = 0
    breaks: int = 0
    total: float | None = None
    """Seconds of the planned run."""

    @property
    def median(self) -> float:
        return statistics.fmean(self.seconds.values()) if self.seconds else 0.0


def by_shape(run: Run) -> dict[str, list[float]]:
    """Return the seconds of the timed steps by batch shape; steps of mixed shapes are left out."""
    found: dict[str, list[float]] = defaultdict(list)
    shape = ""
    for number, event in enumerate(run.of("step")):
        shape = event.get("shape", shape)
        if shape and number >= WARM_UP:
            found[shape].append(event["seconds"])
    return dict(found)


def not_compiled(run: Run) -> str:
    """Return why a run that should compile went on without; empty if it did compile."""
    if run.compiled["graphs"]:
        return ""
    told = [event["text"] for event in run.of("warning") if "torch.compile" in event["text"]]
    return str(told[-1]) if told else "nothing was compiled"


def with_variant(settings: Settings, options: Mapping[str, Any]) -> Settings:
    """Return the settings as a variant trains them, in one process."""
    replaced = {*REPLACED, *(o.name for o in each_option(CompileOptions))}
    plain = {name: value for name, value in settings.changed().items() if name not in replaced}
    return from_values(settings.script, {**plain, **options})


def values_for(settings: Settings, steps: int) -> dict[str, Any]:
    """Return the settings of a variant's run: it neither saves nor samples, and ends after `steps` at the latest."""
    silent = {o.name for group in LEFT_OUT if group in settings.filled for o in each_option(group)}
    silent |= {"max_train_epochs", "validation_split", "lr_warmup_steps", "lr_scheduler", "lr_decay_steps"}
    kept = {name: value for name, value in settings.changed().items() if name not in silent}
    return {**settings.script.identity, **kept, "max_train_steps": steps, "output_name": "measured"}


class Measuring:
    """Measures a variant of a training."""

    def __init__(self, settings: Settings, variant: str, steps: int, folder: Path, progress: Progress):
        self._variant = variant
        self._settings = with_variant(settings, VARIANTS[variant])
        self._steps = steps
        self._folder = folder
        self._progress = progress
        launch = settings.get(LaunchOptions)
        self._threads = launch.num_cpu_threads_per_process if launch else 1

    def row(self) -> Row:
        """Measure the variant and remember the result."""
        options = VARIANTS[self._variant]
        compiles = self._settings[CompileOptions].compile
        # inductor passes this path to the C++ compiler without quotation marks
        environment = {
            "TORCHINDUCTOR_CACHE_DIR": str(self._folder / f"cache-{self._variant.replace(' ', '-')}"),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(self._threads)),  # as accelerate launch sets it
        }
        try:
            run = self._run(WARM_UP + self._steps, environment)
            warm = self._run(WARM_STEPS, environment) if compiles else None
        except Stopped as stopped:
            why = stopped.why or "the run ended by itself"
            return Row(variant=self._variant, options=options, seconds={}, failed=why)
        if compiles and (why := not_compiled(run)):
            return Row(variant=self._variant, options=options, seconds={}, failed=why)
        medians = {shape: statistics.median(times) for shape, times in by_shape(run).items()}
        times = sorted(run.timed)
        row = Row(
            variant=self._variant,
            options=options,
            seconds=medians,
            fastest=times[0],
            slowest=times[int(len(times) * 0.9)],
            first=run.steps[0],
            first_warm=warm.steps[0] if warm else None,
            gpu_bytes=run.allocated,
            graphs=run.compiled["graphs"],
            breaks=run.compiled["breaks"],
        )
        self._remember(row)
        return row

    def _run(self, steps: int, environment: Mapping[str, str]) -> Run:
        values = values_for(self._settings, steps + AFTER)
        return timed_run(
            self._settings.script.file,
            values,
            self._folder / "run",
            steps,
            environment=environment,
            each_look=lambda run: self._progress(min(len(run.steps), steps), steps, run.compiling),
        )

    def _remember(self, row: Row) -> None:
        measured = Measurement(
            **conditions(self._settings, first_gpu(), compiled=True),
            seconds=row.seconds,
            first_seconds=row.first,
            graphs=row.graphs,
            gpu_bytes=row.gpu_bytes,
        )
        if row.seconds:
            remember(measured)


def cells_of(row: Row) -> list[str]:
    """Return the cells behind the name of a row of the table."""
    if row.failed:
        return [FAILED, shortened(row.failed), *[""] * 5]
    return [
        f"{row.median * 1000:.1f} ms",
        f"{row.fastest * 1000:.0f} to {row.slowest * 1000:.0f} ms",
        duration(row.first),
        duration(row.first_warm) if row.first_warm is not None else "",
        f"{row.gpu_bytes / GIB:.2f} GiB" if row.gpu_bytes else "",
        str(row.graphs),
        str(row.breaks),
    ]


def table(rows: Sequence[Row]) -> list[str]:
    """Return the measured rows as a table."""
    head = ["variant", "median", "fastest to p90", "first step", "with cache", "GPU memory", "graphs", "breaks"]
    cells = [head, *([row.variant, *cells_of(row)] for row in rows)]
    widths = [max(len(line[column]) for line in cells if line[1] != FAILED) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def verdict(rows: Sequence[Row], plans: Mapping[str, RunPlan]) -> list[str]:
    """Report for each compiled variant when it pays off in the planned run."""
    said = []
    for row in rows:
        plan = plans.get(row.variant)
        if plan and plan.break_even and row.options.get("compile"):
            said.append(f"{row.variant}: pays off {pays(plan.break_even, plan.steps)}")
    return said


def with_totals(rows: Sequence[Row], plans: Mapping[str, RunPlan]) -> list[Row]:
    """Return the rows with the time that the planned run takes in each variant."""

    def total(row: Row) -> float | None:
        plan = plans.get(row.variant)
        return plan.total_time.seconds if plan and plan.total_time else None

    return [replace(row, total=total(row)) for row in rows]


def best(rows: Sequence[Row], *, saves: bool) -> Row | None:
    """Return the variant in which the planned run takes the least time. If the run `saves` memory by gradient
    checkpointing, only variants that save as much count."""
    fitting = [row for row in rows if row.total and (not saves or _saves_memory(row.options))]
    return min(fitting, key=lambda row: row.total or 0.0, default=None)


def read_settings(file: Path, family: str | None, method: str | None) -> Settings:
    """Return the settings of a file. Raises ValueError, one sentence per line, if they cannot be trained."""
    values = read_toml(file)
    family = family or str(values.get("family"))
    method = method or str(values.get("method"))
    if family not in FAMILY_TITLES or method not in METHOD_TITLES:
        raise ValueError("config_file: does not name its family and method; set --family and --method")
    settings = from_values(script_for(family, method), values)
    if problems := preflight.problems(settings):
        raise ValueError("\n".join(map(str, problems)))
    return settings


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="measure_compile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--config_file", type=Path, required=True, help="settings of the training, TOML")
    made.add_argument("--family", choices=FAMILY_TITLES, help="if the file does not name it")
    made.add_argument("--method", choices=METHOD_TITLES, help="if the file does not name it")
    made.add_argument(
        "--variants", nargs="+", metavar="NAME", help=f"of {', '.join(VARIANTS)}; default: those that fit"
    )
    made.add_argument("--steps", type=int, default=20, help="timed steps of each variant, after the warm-up")
    made.add_argument("--json", type=Path, help="write the result here too")
    made.add_argument("--run_dir", help="run folder for events and for commands such as stop")
    return made


def default_variants(memory: MemoryOptions | None, device: str, *, saves: bool) -> list[str]:
    """Return the variants worth measuring: on a CPU compiling takes long; if the run `saves` memory by gradient
    checkpointing, only variants that do."""
    if device == CPU:
        return ["checkpointed", "checkpointed default"] if saves else ["eager", "default"]
    swaps = memory is not None and not memory.blocks_to_swap
    names = [name for name in VARIANTS if swaps or name != "swapped"]
    return [name for name in names if not saves or _saves_memory(VARIANTS[name])]


def _saves_memory(options: Mapping[str, Any]) -> bool:
    """Return whether a variant takes about as little memory as gradient checkpointing, or less."""
    return bool(options.get("gradient_checkpointing")) or options.get("activation_memory_budget") == 0.0


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        settings = read_settings(arguments.config_file, arguments.family, arguments.method)
        saves = settings[TrainingOptions].gradient_checkpointing
        names = arguments.variants or default_variants(settings.get(MemoryOptions), first_gpu().name, saves=saves)
        if unknown := [name for name in names if name not in VARIANTS]:
            raise ValueError(f"--variants: unknown variant {', '.join(unknown)}; choose from {', '.join(VARIANTS)}")
        if not 1 <= arguments.steps <= LARGEST_STEPS:
            raise ValueError(f"--steps: {arguments.steps} is not between 1 and {LARGEST_STEPS:,}")
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return MISTAKE

    def work(reporter: Reporter) -> Path | None:
        rows: list[Row] = []
        with tempfile.TemporaryDirectory(prefix="measure-") as temporary:
            for number, name in enumerate(names, 1):
                progress = tool.start_phase(reporter, f"measuring {name}")
                row = Measuring(settings, name, arguments.steps, Path(temporary), progress).row()
                rows.append(row)
                told = row.failed or f"{row.median * 1000:.1f} ms a step"
                print(f"{number} of {len(names)}: {name}: {told}", flush=True)
        # from the stored measurements
        plans = {row.variant: plan_run(with_variant(settings, row.options)) for row in rows if not row.failed}
        result = with_totals(rows, plans)
        chosen = best(result, saves=saves)
        print("\n".join(["", *table(result), *verdict(result, plans)]))
        if chosen:
            print(f"Fastest for this run: {chosen.variant}, about {duration(chosen.total or 0.0)} in all")
        path: Path | None = arguments.json or (Path(arguments.run_dir) / RESULT if arguments.run_dir else None)
        found = {"rows": [asdict(row) for row in result], "best": chosen.variant if chosen else None}
        if path:
            write_whole(path, json.dumps(found))
        return path

    return tool.run(work, arguments.run_dir)


if __name__ == "__main__":
    sys.exit(main())
