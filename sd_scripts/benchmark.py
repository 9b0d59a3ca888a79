"""Time real training steps of full-size SDXL with random weights, eager beside compiled.

python -m sd_scripts.benchmark [--rows eager compiled ...] [--steps 30] [--markdown FILE]

Every row runs in a process of its own, one after another, with inputs made ahead: what is measured is the step of the
trainer, forward to optimizer, not the reading of pictures. Each row compiles from an empty cache; those marked warm
start from the cache of the row that they vary.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sd_scripts.families.family import Parts
from sd_scripts.families.sdxl import SDXL
from sd_scripts.families.sdxl.unet import make_ours, random_full_size
from sd_scripts.library.compile_utils import compile_model
from sd_scripts.library.optimizers import make_optimizer
from sd_scripts.networks.lora import attach
from sd_scripts.networks.plan import Adapted, parameter_groups, plan_layers, read_args
from sd_scripts.options.catalog import SDXL_LORA
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.optimizer import OptimizerOptions
from sd_scripts.options.settings import Settings
from sd_scripts.training import compiling
from sd_scripts.training.learning import LoraLearning
from sd_scripts.training.step import TrainStep


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    title: str
    mode: str | None = None
    """compile_mode; None runs eagerly."""
    batch: int = 1
    sizes: tuple[tuple[int, int], ...] = ((1024, 1024),)
    """Width and height; several take turns."""
    accumulation: int = 1
    checkpointing: bool = False
    dynamic: str = "auto"
    cache_of: str | None = None
    """Another row whose compiler cache this one starts from, so that its first steps are no cold start."""


TWO_SIZES = ((1024, 1024), (832, 1216))
ROWS = (
    Row(name="eager", title="eager"),
    Row(name="compiled", title="compile_mode = default", mode="default"),
    Row(name="graphs", title="compile_mode = reduce-overhead", mode="reduce-overhead"),
    Row(name="eager4", title="eager", batch=4),
    Row(name="compiled4", title="compile_mode = default", mode="default", batch=4),
    Row(
        name="compiled_sizes",
        title="default, two buckets in turn",
        mode="default",
        sizes=TWO_SIZES,
        cache_of="compiled",
    ),
    Row(
        name="graphs_sizes",
        title="reduce-overhead, two buckets in turn",
        mode="reduce-overhead",
        sizes=TWO_SIZES,
        cache_of="graphs",
    ),
    Row(name="compiled_sum", title="default, accumulation 2", mode="default", accumulation=2, cache_of="compiled"),
    Row(
        name="graphs_sum",
        title="reduce-overhead, accumulation 2",
        mode="reduce-overhead",
        accumulation=2,
        cache_of="graphs",
    ),
    Row(name="eager_checkpointing", title="eager, gradient checkpointing", checkpointing=True),
    Row(name="compiled_checkpointing", title="default, gradient checkpointing", mode="default", checkpointing=True),
)
RANK = 32
WARM_UP = 8


@dataclass(kw_only=True)
class Prepared:
    """A step of the trainer with its inputs, one set for each size."""

    step: TrainStep
    inputs: list[dict[str, Tensor]]
    layers: int

    def run(self, number: int) -> Tensor:
        """One update; the loss of its last micro-batch."""
        for _ in range(self.step.accumulation):
            loss = self.step.micro(self.inputs[number % len(self.inputs)])
        self.step.update()
        return loss


def prepare(row: Row, unet: Any, device: torch.device) -> Prepared:
    """Attach the LoRA, compile and choose the optimizer, as the trainer does it."""
    settings = _settings(row)
    options = settings[CompileOptions]
    make_ours(unet)
    unet.train()
    if row.checkpointing:
        unet.enable_gradient_checkpointing()
    args = read_args(settings, SDXL.lora, print)
    plans = plan_layers([Adapted(module=unet, target=SDXL.lora, lr=1e-4)], args)
    network = attach(plans, args.dropouts, torch.Generator().manual_seed(0))
    learning = LoraLearning(network, parameter_groups(network), [unet])
    if options.compile:
        compile_model(
            options,
            unet,
            SDXL.compile_targets(unet),
            log_prefix=SDXL.title,
            graphs_expected=compiling.graphs_expected(SDXL, unet, len(row.sizes)),
            static=len(row.sizes) <= compiling.STATIC_SHAPES,
        )
    parts = Parts(denoiser=unet, vae=unet, text_encoders=[], tokenizers=[], source="random")

    def loss(inputs: dict[str, Tensor]) -> Tensor:
        text = {key[5:]: value for key, value in inputs.items() if key.startswith("text.")}
        return SDXL.loss(parts, inputs, text, settings)

    step = TrainStep(
        loss,
        learning,
        make_optimizer(settings[OptimizerOptions], learning.parameter_groups()),
        accumulation=row.accumulation,
        cuda_graphs=compiling.uses_cuda_graphs(options),
    )
    inputs = [random_inputs(row.batch, size, unet.config, device) for size in row.sizes]
    return Prepared(step=step, inputs=inputs, layers=len(plans))


def measure(row: Row, steps: int) -> dict[str, Any]:
    """Milliseconds a step, memory in GiB, and what the compiler did."""
    device = torch.device("cuda")
    compiling.warm_up(_settings(row)[CompileOptions], device)
    prepared = prepare(row, random_full_size(device, torch.bfloat16), device)
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
        "modules": prepared.layers,
        "loss": float(torch.stack(losses[-8:]).mean()),
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def _settings(row: Row) -> Settings:
    chosen = {"compile": row.mode is not None, "compile_mode": row.mode or "default", "compile_dynamic": row.dynamic}
    values = {"network_dim": RANK, "network_alpha": RANK / 2, "learning_rate": 1e-4, **chosen}
    return Settings(SDXL_LORA.groups, values)


def random_inputs(batch: int, size: tuple[int, int], unet: Any, device: torch.device) -> dict[str, Tensor]:
    """What a step reads, as families/sdxl/objective.py makes it, from noise; `unet` is the U-Net's configuration."""
    generator = torch.Generator(device).manual_seed(size[0])

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, generator=generator)

    width, height = size
    first = unet["cross_attention_dim"] * 3 // 8  # 768 of 2048
    pooled = unet["projection_class_embeddings_input_dim"] - 6 * unet["addition_time_embed_dim"]
    return {
        "noisy": normal(batch, 4, height // 8, width // 8),
        "target": normal(batch, 4, height // 8, width // 8),
        "timesteps": torch.randint(0, 1000, (batch,), device=device, generator=generator),
        "sizes": torch.tensor([[height, width, 0, 0, height, width]] * batch, device=device, dtype=torch.float32),
        "loss_weight": torch.ones(batch, device=device),
        "text.hidden_state1": normal(batch, 77, first),
        "text.hidden_state2": normal(batch, 77, unet["cross_attention_dim"] - first),
        "text.pool2": normal(batch, pooled),
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    first = next(iter(results.values()))
    lines = [
        f"{first['card']}, PyTorch {first['torch']}, LoRA rank {RANK} on {first['modules']} layers, bf16, fused AdamW.",
        "",
        "| step | batch | median ms | min to p90 | mean | GiB allocated | reserved | first s | graphs | breaks | loss|",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in (row for row in ROWS if row.name in results):
        r, warm = results[row.name], " (warm)" if row.cache_of else ""
        lines.append(
            f"| {row.title} | {row.batch} | {r['median']:.1f} | {r['min']:.1f} to {r['p90']:.1f} | {r['mean']:.1f} | "
            f"{r['allocated']:.2f} | {r['reserved']:.2f} | {r['first']:.1f}{warm} | {r['graphs']} | {r['breaks']} | "
            f"{r['loss']:.4f} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [row.name for row in ROWS]
    parser.add_argument("--rows", nargs="*", choices=names, default=names)
    parser.add_argument("--steps", type=int, default=30, help="timed steps of each row, after the warm-up")
    parser.add_argument("--markdown", type=Path, help="write the table here too")
    parser.add_argument("--row", choices=names, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no NVIDIA card is seen; full-size steps are measured on one", file=sys.stderr)
        return 2
    if arguments.row:
        row = next(row for row in ROWS if row.name == arguments.row)
        print("RESULT " + json.dumps(measure(row, arguments.steps)), flush=True)
        return 0
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as caches:
        for row in (row for row in ROWS if row.name in arguments.rows):
            result = _in_own_process(row, arguments.steps, Path(caches))
            if result:
                results[row.name] = result
                print(f"{row.name}: {result['median']:.1f} ms, first {result['first']:.1f} s", flush=True)
            if arguments.markdown and results:
                arguments.markdown.write_text(table(results) + "\n")
    print("\n" + table(results) if results else "no row could be measured")
    return 0 if len(results) == len(arguments.rows) else 1


def _in_own_process(row: Row, steps: int, caches: Path) -> dict[str, Any] | None:
    """What `measure` returns; None if it failed, which is told."""
    own = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",  # as the trainer sets it
        "TORCHINDUCTOR_CACHE_DIR": str(caches / (row.cache_of or row.name)),
    }
    command = [sys.executable, "-m", "sd_scripts.benchmark", "--row", row.name, "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **own}, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    print(f"{row.name} failed:\n{done.stderr[-3000:]}", file=sys.stderr, flush=True)
    return None


if __name__ == "__main__":
    sys.exit(main())
