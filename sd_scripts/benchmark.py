"""Time real training steps of full-size models with random weights, eager beside compiled.

python -m sd_scripts.benchmark [--family sdxl] [--rows eager compiled ...] [--steps 30] [--markdown FILE]
python -m sd_scripts.benchmark --family flux --rows compiled fp8_compute --curve 200
python -m sd_scripts.benchmark --method full

Every row runs in a process of its own, one after another, with inputs made ahead: what is measured is the step of the
trainer, forward to optimizer, not the reading of images. Each row compiles from an empty cache; those marked warm
start from the cache of the row that they vary. --curve trains on a few made-up images with new noise in each step,
the same in every row, and compares how the loss falls.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from sd_scripts.families.family import Components, Family
from sd_scripts.families.flux import FLUX
from sd_scripts.families.flux import full_size as flux_full_size
from sd_scripts.families.sdxl import SDXL
from sd_scripts.families.sdxl import full_size as sdxl_full_size
from sd_scripts.library.compile_utils import KnownInputs, compile_model
from sd_scripts.networks.lora import attach
from sd_scripts.networks.plan import AdaptedModule, parameter_groups, plan_layers, read_args
from sd_scripts.options.catalog import script_for
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.options.optimizer import OptimizerOptions
from sd_scripts.options.settings import Settings
from sd_scripts.options.training import TrainingOptions
from sd_scripts.training import compiling
from sd_scripts.training.context import Context
from sd_scripts.training.full import Full
from sd_scripts.training.lora import LoraTrainable
from sd_scripts.training.master_weights import held_dtype
from sd_scripts.training.step import TrainStep
from sd_scripts.training.trainable import Trainable

LR, FULL_LR = 1e-4, 1e-5
WARM_UP = 8


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    title: str
    options: dict[str, Any] = field(default_factory=dict)
    """What differs from an eager step, by option."""
    batch: int = 1
    sizes: tuple[tuple[int, int], ...] = ((1024, 1024),)
    """Width and height; several take turns."""
    cache_of: str | None = None
    """Another row whose compiler cache this one reuses, so that it starts warm."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A family's full-size model, the training method, and the rows to measure."""

    family: Family
    method: str
    random_components: Callable[[torch.device, torch.dtype], Components]
    random_inputs: Callable[[Components, int, tuple[int, int], torch.device], dict[str, Tensor]]
    rank: int | None
    """Of the LoRA."""
    rows: tuple[Row, ...]

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)


TWO_SIZES = ((1024, 1024), (832, 1216))
COMPILED = {"compile": True}
GRAPHS = {"compile": True, "compile_mode": "reduce-overhead"}
CHECKPOINTING = {"gradient_checkpointing": True}
SUM = {"gradient_accumulation_steps": 2}
SDXL_ROWS = (
    Row(name="eager", title="eager"),
    Row(name="compiled", title="compile_mode = default", options=COMPILED),
    Row(name="graphs", title="compile_mode = reduce-overhead", options=GRAPHS),
    Row(name="eager4", title="eager", batch=4),
    Row(name="compiled4", title="compile_mode = default", options=COMPILED, batch=4),
    Row(
        name="compiled_sizes",
        title="default, two buckets in turn",
        options=COMPILED,
        sizes=TWO_SIZES,
        cache_of="compiled",
    ),
    Row(
        name="graphs_sizes",
        title="reduce-overhead, two buckets in turn",
        options=GRAPHS,
        sizes=TWO_SIZES,
        cache_of="graphs",
    ),
    Row(name="compiled_sum", title="default, accumulation 2", options=COMPILED | SUM, cache_of="compiled"),
    Row(name="graphs_sum", title="reduce-overhead, accumulation 2", options=GRAPHS | SUM, cache_of="graphs"),
    Row(name="eager_checkpointing", title="eager, gradient checkpointing", options=CHECKPOINTING),
    Row(
        name="compiled_checkpointing",
        title="default, gradient checkpointing",
        options=COMPILED | CHECKPOINTING,
        cache_of="compiled",
    ),
)
FLUX_ROWS = (
    Row(name="eager", title="eager"),
    Row(name="compiled", title="compiled", options=COMPILED),
    Row(name="eager_checkpointing", title="eager, gradient checkpointing", options=CHECKPOINTING),
    Row(
        name="compiled_checkpointing",
        title="compiled, gradient checkpointing",
        options=COMPILED | CHECKPOINTING,
        cache_of="compiled",
    ),
    Row(name="fp8_compute", title="compiled, fp8_compute", options=COMPILED | {"fp8_compute": True}),
    Row(
        name="fp8_base",
        title="compiled, fp8_base, gradient checkpointing",
        options=COMPILED | CHECKPOINTING | {"fp8_base": True},
    ),
    Row(
        name="fp8_all",
        title="compiled, fp8_base and fp8_compute, gradient checkpointing",
        options=COMPILED | CHECKPOINTING | {"fp8_base": True, "fp8_compute": True},
        cache_of="fp8_compute",
    ),
    *(
        Row(
            name=f"swap{count}",
            title=f"compiled, gradient checkpointing, blocks_to_swap = {count}",
            options=COMPILED | CHECKPOINTING | {"blocks_to_swap": count},
            cache_of="compiled",
        )
        for count in (18, 34)
    ),
    Row(
        name="swap34_fp8",
        title="compiled, gradient checkpointing, blocks_to_swap = 34, fp8_base",
        options=COMPILED | CHECKPOINTING | {"blocks_to_swap": 34, "fp8_base": True},
        cache_of="fp8_base",
    ),
)
HALF = {"full_bf16": True}
ADAFACTOR = {
    "optimizer_type": "Adafactor",
    "optimizer_args": ["relative_step=False", "scale_parameter=False", "warmup_init=False"],
}
FUSED = HALF | {"fused_backward_pass": True}
SDXL_FULL_ROWS = (
    Row(name="eager", title="eager", options=HALF),
    Row(name="compiled", title="compile_mode = default", options=HALF | COMPILED),
    Row(name="graphs", title="compile_mode = reduce-overhead", options=HALF | GRAPHS),
    Row(name="eager4", title="eager", options=HALF, batch=4),
    Row(name="compiled4", title="compile_mode = default", options=HALF | COMPILED, batch=4),
    Row(
        name="graphs_masters",
        title="reduce-overhead, weights in float32 (full_bf16 off)",
        options=GRAPHS,
        cache_of="graphs",
    ),
    Row(
        name="fused",
        title="default, gradient checkpointing, fused_backward_pass",
        options=FUSED | COMPILED | CHECKPOINTING,
        cache_of="compiled",
    ),
    Row(
        name="fused_adafactor",
        title="default, gradient checkpointing, fused_backward_pass, Adafactor",
        options=FUSED | COMPILED | CHECKPOINTING | ADAFACTOR,
        cache_of="compiled",
    ),
)
FLUX_FULL_ROWS = (
    Row(
        name="fused",
        title="compiled, gradient checkpointing, fused_backward_pass",
        options=FUSED | COMPILED | CHECKPOINTING,
    ),
    *(
        Row(
            name=f"fused_swap{count}",
            title=f"compiled, gradient checkpointing, fused_backward_pass, blocks_to_swap = {count}",
            options=FUSED | COMPILED | CHECKPOINTING | {"blocks_to_swap": count},
            cache_of="fused",
        )
        for count in (10, 18)
    ),
    *(
        Row(
            name=f"adafactor_swap{count}",
            title=f"compiled, gradient checkpointing, fused_backward_pass, Adafactor, blocks_to_swap = {count}",
            options=FUSED | COMPILED | CHECKPOINTING | ADAFACTOR | {"blocks_to_swap": count},
            cache_of="fused",
        )
        for count in (18, 35)
    ),
)
SUBJECTS = {
    ("sdxl", "lora"): Subject(
        family=SDXL,
        method="lora",
        random_components=sdxl_full_size.random_components,
        random_inputs=sdxl_full_size.random_inputs,
        rank=32,
        rows=SDXL_ROWS,
    ),
    ("flux", "lora"): Subject(
        family=FLUX,
        method="lora",
        random_components=flux_full_size.random_components,
        random_inputs=flux_full_size.random_inputs,
        rank=16,
        rows=FLUX_ROWS,
    ),
}
SUBJECTS |= {
    (name, "full"): replace(SUBJECTS[name, "lora"], method="full", rank=None, rows=rows)
    for name, rows in (("sdxl", SDXL_FULL_ROWS), ("flux", FLUX_FULL_ROWS))
}


@dataclass(kw_only=True)
class Prepared:
    """A step of the trainer with its inputs, one set for each size."""

    step: TrainStep
    inputs: list[dict[str, Tensor]]
    components: int
    """How many layers the LoRA adapts, or how many weights are trained."""

    def run(self, number: int) -> Tensor:
        """Run one update and return the loss of its last micro-batch."""
        for _ in range(self.step.accumulation):
            loss = self.step.micro(self.inputs[number % len(self.inputs)])
        self.step.update()
        return loss


def prepare(subject: Subject, row: Row, components: Components, device: torch.device) -> Prepared:
    """Place the model, make it trainable, compile it and choose the optimizer, as the trainer does."""
    family, settings = subject.family, settings_of(subject, row)
    options, training = settings[CompileOptions], settings[TrainingOptions]
    make_learn = _lora if subject.method == "lora" else _full
    trainable, count = make_learn(family, components, settings, device)
    trainable.train()
    if training.gradient_checkpointing:
        family.checkpoint_gradients(components.denoiser, settings)
    if options.compile:
        compile_model(
            options,
            components.denoiser,
            family.compile_targets(components.denoiser),
            log_prefix=family.title,
            graphs_expected=compiling.graphs_expected(family, components.denoiser, len(row.sizes)),
            static=len(row.sizes) <= compiling.STATIC_SHAPES,
        )

    def loss(inputs: dict[str, Tensor]) -> Tensor:
        text = {key[5:]: value for key, value in inputs.items() if key.startswith("text.")}
        return family.loss(components, inputs, text, settings)

    step = TrainStep(
        loss,
        trainable,
        trainable.make_optimizer(settings[OptimizerOptions]),
        accumulation=training.gradient_accumulation_steps,
        cuda_graphs=compiling.uses_cuda_graphs(options),
        known=KnownInputs() if options.compile else None,
    )
    inputs = [subject.random_inputs(components, row.batch, size, device) for size in row.sizes]
    return Prepared(step=step, inputs=inputs, components=count)


def _lora(family: Family, components: Components, settings: Settings, device: torch.device) -> tuple[Trainable, int]:
    family.place(components, settings, device)
    args = read_args(settings, family.lora, print)
    plans = plan_layers([AdaptedModule(module=components.denoiser, target=family.lora, lr=LR)], args)
    network = attach(plans, args.dropouts, torch.Generator().manual_seed(0), device=device)
    return LoraTrainable(network, parameter_groups(network), [components.denoiser]), len(plans)


def _full(family: Family, components: Components, settings: Settings, device: torch.device) -> tuple[Trainable, int]:
    cpu = device.type == "cpu"
    context = Context(settings=settings, accelerator=Accelerator(cpu=cpu), log=None, run_dir=Path(), seed=0)
    method = Full()
    method.change_base(family, components, context)
    family.place(components, settings, device)
    return method.prepare(family, components, context), len(list(components.denoiser.parameters()))


def settings_of(subject: Subject, row: Row) -> Settings:
    values: dict[str, Any] = {"mixed_precision": "bf16"}
    if subject.rank:
        values |= {"learning_rate": LR, "network_dim": subject.rank, "network_alpha": subject.rank / 2}
    else:
        values |= {"learning_rate": FULL_LR, "save_model_as": "safetensors"}
    if subject.family.name == "flux":
        values |= {"model_prediction_type": "raw", "guidance_scale": 1.0}
    return Settings(script_for(subject.family.name, subject.method).groups, {**values, **row.options})


def random_components(subject: Subject, row: Row, device: torch.device) -> Components:
    """Make random components in the dtype that training starts with."""
    dtype = torch.bfloat16 if subject.rank else held_dtype(settings_of(subject, row))
    return subject.random_components(device, dtype)


def measure(subject: Subject, row: Row, steps: int) -> dict[str, Any]:
    """Measure milliseconds per step, memory in GiB and the compiler's work."""
    device, settings = torch.device("cuda"), settings_of(subject, row)
    compiling.warm_up(settings[CompileOptions], settings[CompileMoreOptions], device)
    prepared = prepare(subject, row, random_components(subject, row, device), device)
    compiling.wait_until_warm()
    before, sizes = compiling.Counts(), len(row.sizes)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()

    torch.cuda.synchronize()
    began = time.perf_counter()
    for number in range(sizes):
        prepared.run(number)
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    for number in range(WARM_UP * sizes):
        prepared.run(number)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    marks[0].record()
    losses = []
    for number in range(steps):
        losses.append(prepared.run(number))
        marks[number + 1].record()
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in pairwise(marks))
    counts = compiling.Counts()
    return {
        "median": statistics.median(times),
        "mean": statistics.fmean(times),
        "min": times[0],
        "p90": times[int(len(times) * 0.9)],
        "allocated": torch.cuda.max_memory_allocated() / 2**30,
        "reserved": torch.cuda.max_memory_reserved() / 2**30,
        "first": first,
        "graphs": counts.graphs - before.graphs,
        "breaks": counts.breaks - before.breaks,
        "modules": prepared.components,
        "loss": float(torch.stack(losses[-8:]).mean()),
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "travelled": _copy_times(prepared) if settings_of(subject, row).values().get("blocks_to_swap") else None,
    }


def _copy_times(prepared: Prepared, steps: int = 2) -> dict[str, float]:
    """Return, from the profiler's trace, the milliseconds per step of block copies and the share that overlaps with
    computation."""
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for number in range(steps):
            prepared.run(number)
        torch.cuda.synchronize()
    there = [event for event in trace.events() or [] if event.device_type == torch.autograd.DeviceType.CUDA]
    copies = _merged_ranges(event.time_range for event in there if "HtoD" in event.name)
    kernels = _merged_ranges(event.time_range for event in there if not event.name.startswith(("Memcpy", "Memset")))
    beside = sum(max(0.0, min(c[1], k[1]) - max(c[0], k[0])) for c in copies for k in kernels)
    whole = sum(end - start for start, end in copies)
    return {"copies": whole / 1e3 / steps, "beside": beside / whole}


def _merged_ranges(ranges: Iterable[Any]) -> list[list[float]]:
    """Merge overlapping time ranges: starts and ends in microseconds."""
    joined: list[list[float]] = []
    for start, end in sorted((r.start, r.end) for r in ranges):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    return joined


POOL = 8
"""Number of random images that a curve trains on."""
CURVE_LR = 4e-4


def curve(subject: Subject, row: Row, steps: int) -> dict[str, Any]:
    """Return the loss of every step of training on a few fixed random images."""
    device = torch.device("cuda")
    prepared = prepare(subject, row, random_components(subject, row, device), device)
    for group in prepared.step.optimizer.param_groups:
        group["lr"] = CURVE_LR
    (fixed,) = prepared.inputs
    images = torch.randn(POOL, *fixed["noisy"].shape, generator=torch.Generator(device).manual_seed(0), device=device)
    losses = []
    for number in range(steps):
        generator = torch.Generator(device).manual_seed(number)
        noise = torch.randn(fixed["noisy"].shape, device=device, generator=generator)
        t = torch.rand(row.batch, device=device, generator=generator)
        image, at = images[number % POOL], t.view(-1, 1, 1, 1)
        inputs = fixed | {"noisy": (1 - at) * image + at * noise, "target": noise - image, "timesteps": t}
        losses.append(prepared.step.micro(inputs))
        prepared.step.update()
    return {"losses": torch.stack(losses).tolist()}


def curve_table(results: dict[str, dict[str, Any]], part: int = 20) -> str:
    """Mean losses of `part` steps at a time, one column for each row of the benchmark."""
    count = min(len(result["losses"]) for result in results.values())
    lines = ["| steps | " + " | ".join(results) + " |", "|---" * (len(results) + 1) + "|"]
    for start in range(0, count, part):
        means = [statistics.fmean(result["losses"][start : start + part]) for result in results.values()]
        lines.append(f"| {start + 1} to {min(start + part, count)} | " + " | ".join(f"{m:.4f}" for m in means) + " |")
    return "\n".join(lines)


def table(subject: Subject, results: dict[str, dict[str, Any]]) -> str:
    first, notes = next(iter(results.values())), []
    lines = [
        f"{first['card']}, PyTorch {first['torch']}, {_workload(subject, first['modules'])}",
        "",
        "| step | batch | median ms | min to p90 | mean | GiB allocated | reserved | first s | graphs | breaks | loss|",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in (row for row in subject.rows if row.name in results):
        r, warm = results[row.name], " (warm)" if row.cache_of else ""
        lines.append(
            f"| {row.title} | {row.batch} | {r['median']:.1f} | {r['min']:.1f} to {r['p90']:.1f} | {r['mean']:.1f} | "
            f"{r['allocated']:.2f} | {r['reserved']:.2f} | {r['first']:.1f}{warm} | {r['graphs']} | {r['breaks']} | "
            f"{r['loss']:.4f} |"
        )
        if way := r.get("travelled"):
            notes.append(
                f"{row.title}: blocks travel for {way['copies']:.0f} ms of a step, during {way['beside']:.0%} of which "
                "the card computes (profiler's trace)."
            )
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def _workload(subject: Subject, components: int) -> str:
    if subject.rank:
        return f"LoRA rank {subject.rank} on {components} layers, bf16, fused AdamW."
    return f"all {components} weights learn, full_bf16, AdamW with stochastic rounding where nothing else is said."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=("sdxl", "flux"), default="sdxl")
    parser.add_argument("--method", choices=("lora", "full"), default="lora")
    parser.add_argument("--rows", nargs="*", help="names of rows; all where none is given")
    parser.add_argument("--steps", type=int, default=30, help="timed steps of each row, after the warm-up")
    parser.add_argument("--curve", type=int, metavar="STEPS", help="compare how the loss falls instead of timing")
    parser.add_argument("--markdown", type=Path, help="write the table here too")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    subject = SUBJECTS[arguments.family, arguments.method]
    names = [row.name for row in subject.rows]
    wanted = arguments.rows or names
    if unknown := set(wanted) - set(names):
        print(f"--rows: no row is called {', '.join(sorted(unknown))}; there are {', '.join(names)}", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("no NVIDIA GPU found; the benchmark needs one", file=sys.stderr)
        return 2
    if arguments.row:
        row = subject.row(arguments.row)
        told = curve(subject, row, arguments.curve) if arguments.curve else measure(subject, row, arguments.steps)
        print("RESULT " + json.dumps(told), flush=True)
        return 0
    results: dict[str, dict[str, Any]] = {}
    what = ["--curve", str(arguments.curve)] if arguments.curve else ["--steps", str(arguments.steps)]
    with tempfile.TemporaryDirectory() as caches:
        for row in (row for row in subject.rows if row.name in wanted):
            result = _in_own_process(subject, row, what, Path(caches))
            if result:
                results[row.name] = result
                print(f"{row.name}: {_summary(result)}", flush=True)
            if arguments.markdown and results:
                arguments.markdown.write_text(_report(subject, results) + "\n")
    print("\n" + _report(subject, results) if results else "no row could be measured; see the errors above")
    return 0 if len(results) == len(wanted) else 1


def _summary(result: dict[str, Any]) -> str:
    if "losses" in result:
        return f"loss {result['losses'][-1]:.4f} at the end"
    return f"{result['median']:.1f} ms, first {result['first']:.1f} s"


def _report(subject: Subject, results: dict[str, dict[str, Any]]) -> str:
    timed = all("losses" not in result for result in results.values())
    return table(subject, results) if timed else curve_table(results)


def _in_own_process(subject: Subject, row: Row, what: list[str], caches: Path) -> dict[str, Any] | None:
    """Run `measure` in a new process; on failure print its errors and return None."""
    own = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",  # as the trainer sets it
        "TORCHINDUCTOR_CACHE_DIR": str(caches / (row.cache_of or row.name)),
    }
    command = [
        sys.executable,
        "-m",
        "sd_scripts.benchmark",
        "--family",
        subject.family.name,
        "--method",
        subject.method,
    ]
    command += ["--row", row.name, *what]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **own}, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    print(f"{row.name} failed:\n{done.stderr[-3000:]}", file=sys.stderr, flush=True)
    return None


if __name__ == "__main__":
    sys.exit(main())
