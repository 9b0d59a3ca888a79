"""torch.compile in a run: checked before loading, set up for the shapes of the data, watched, and left if it fails."""

import importlib.util
import os
import shutil
import sys
import threading
from collections.abc import Iterable

import torch
from torch import nn

from sd_scripts.data.epochs import BatchShape
from sd_scripts.families.family import Family
from sd_scripts.library.compile_utils import LEAST_LIMIT, compile_model
from sd_scripts.options.compile import CompileOptions
from sd_scripts.training.context import Context, Failed

STATIC_SHAPES = 4
"""Up to so many shapes compile_dynamic = auto makes one set of graphs for each: they run faster than dynamic ones."""


NO_COMPILER = "install a C++ compiler (g++; on Windows the Build Tools of Visual Studio)"


def problems(options: CompileOptions, device: torch.device) -> list[str]:
    """Why this machine cannot compile with these options, with the remedy; nothing is compiled to find out."""
    if not options.compile:
        return []
    found = []
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit())
    if version < (2, 1):
        found.append(f"compile: PyTorch {torch.__version__} is too old; install 2.1 or newer, or turn compile off")
    needs_triton = options.compile_backend == "inductor" and device.type == "cuda"
    if needs_triton and importlib.util.find_spec("triton") is None:
        package = "triton-windows" if sys.platform == "win32" else "triton"
        found.append(f"compile: Triton is not installed; run `pip install {package}`, or turn compile off")
    if options.compile_dynamic == "true" and sys.platform == "win32" and not _has_msvc():
        found.append(
            "compile_dynamic: true needs the C++ compiler of Visual Studio on Windows; install its Build Tools and "
            "start from the x64 Native Tools prompt, or set compile_dynamic = auto"
        )
    return found


def uses_cuda_graphs(options: CompileOptions) -> bool:
    by_mode = options.compile_backend == "inductor" and options.compile_mode in ("reduce-overhead", "max-autotune")
    return options.compile and (by_mode or options.compile_backend == "cudagraphs")


_warming: list[threading.Thread] = []


def warm_up(options: CompileOptions, device: torch.device) -> None:
    """Bring the compiler up in the background while the model is still loading: that takes it seconds."""
    if options.compile and options.compile_backend == "inductor":
        _warming.append(threading.Thread(target=_start_inductor, args=(device,), daemon=True))
        _warming[-1].start()


def _start_inductor(device: torch.device) -> None:
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.warm_pool()
    if device.type == "cuda":  # its first graph reads pattern tables and wakes Triton; a CPU has better things to do
        x = torch.ones(64, 64, device=device, requires_grad=True)
        torch.compile(lambda x: torch.nn.functional.gelu(x @ x).sum())(x).backward()


def wait_until_warm() -> None:
    """Needed before any module is called: while the compiler traces, calls of all threads go through it."""
    while _warming:
        _warming.pop().join()


def graphs_expected(family: Family, denoiser: nn.Module, sizes: int) -> int:
    """More graphs than one class of block will need for so many sizes of batch: past the limit blocks run eagerly.

    Equal blocks are captured again where their input takes no gradient, and at each depth of the U-Net, where pictures
    are smaller; at equal widths that is more than their weights tell.
    """
    return sizes * max(2 * max(family.graph_kinds(denoiser).values()), LEAST_LIMIT)


class Compilation:
    """The compiled blocks of a run, and what the compiler does with them."""

    def __init__(self, context: Context, family: Family, denoiser: nn.Module, shapes: Iterable[BatchShape]):
        self._context, self._options = context, context.settings[CompileOptions]
        self._shapes = len(list(shapes))
        wait_until_warm()
        self._before = self._seen = Counts()
        self._failed = self.limited = False
        if not self._options.compile:
            return
        expected = graphs_expected(family, denoiser, self._shapes)
        self._limit = self._options.compile_cache_size_limit or expected
        compile_model(
            self._options,
            denoiser,
            family.compile_targets(denoiser),
            log_prefix=family.title,
            graphs_expected=expected,
            static=self._shapes <= STATIC_SHAPES,
        )
        context.phase("compiling")

    @property
    def active(self) -> bool:
        return self._options.compile and not self._failed

    def watch(self, step: int) -> None:
        """Tell what was compiled in this step, and once if more was wanted than compile_cache_size_limit lets in:
        `limited` is true from then on, and shapes that come after the limit run eagerly."""
        if not self.active:
            return
        now = Counts()
        if now.refused > self._before.refused and not self.limited:
            self.limited = True
            remedy = "0, which computes it" if self._options.compile_cache_size_limit else str(2 * self._limit)
            self._context.warn(
                f"compile_cache_size_limit: {self._limit} graphs for each kind of block are not enough; what comes "
                f"after them runs uncompiled, which is slow. Set it to {remedy}"
            )
        if now.graphs == self._seen.graphs:
            return
        self._context.tell(
            "compile",
            step=step,
            graphs=now.graphs - self._before.graphs,
            breaks=now.breaks - self._before.breaks,
            recompiles=now.recompiles - self._before.recompiles,
            seconds=round(now.seconds - self._before.seconds, 1),
            text=f"step {step}: {now.graphs - self._seen.graphs} graphs compiled",
        )
        self._seen = now

    def survives(self, error: Exception) -> bool:
        """After a failed step: whether the run can go on eagerly. Raises Failed for compile_fullgraph."""
        if not self.active or not _is_compiler_error(error):
            return False
        first_line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        what = f"torch.compile failed in the first compiled step: {type(error).__name__}: {first_line.strip()[:300]}"
        remedy = self._remedy(error)
        if self._options.compile_fullgraph:
            raise Failed(what, f"{remedy}, or turn compile_fullgraph off to go on without compiling") from error
        torch.compiler.set_stance("force_eager")
        self._failed = True
        self._context.warn(f"{what}. The run goes on without compiling. To compile, {remedy}.")
        return True

    def _remedy(self, error: Exception) -> str:
        options = self._options
        if type(error).__name__ == "FailOnRecompileLimitHit":
            return f"set compile_cache_size_limit = {'0' if options.compile_cache_size_limit else 2 * self._limit}"
        if "InvalidCxxCompiler" in f"{type(error).__name__} {error}":
            return NO_COMPILER
        if options.compile_backend != "inductor":
            return "set compile_backend = inductor"
        if options.compile_mode != "default":
            return "set compile_mode = default"
        if options.compile_dynamic != "false":
            return "set compile_dynamic = false"
        return "set compile_backend = aot_eager to see whether capturing or code generation fails"


class Counts:
    """What Dynamo has counted in this process so far."""

    def __init__(self) -> None:
        from torch._dynamo.utils import counters, get_compilation_metrics

        self.graphs = counters["stats"]["unique_graphs"]
        self.breaks = sum(counters["graph_break"].values())
        self.refused = sum(n for what, n in counters["unimplemented"].items() if "recompile limit" in what)
        metrics = get_compilation_metrics()
        self.recompiles = sum(1 for metric in metrics if getattr(metric, "recompile_reason", None))
        self.seconds = sum(getattr(metric, "entire_frame_compile_time_s", None) or 0.0 for metric in metrics)


def _is_compiler_error(error: Exception) -> bool:
    compiler = ("torch._dynamo", "torch._inductor", "torch._functorch", "triton")
    return any(kind.__module__.startswith(compiler) for kind in type(error).__mro__)


def _has_msvc() -> bool:
    return shutil.which("cl") is not None or bool(os.environ.get("VCINSTALLDIR"))
