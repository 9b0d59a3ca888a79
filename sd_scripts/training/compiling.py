"""torch.compile in a run: set up for the data's shapes, watched, dropped if it fails."""

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from sd_scripts.data.epochs import BatchShape
from sd_scripts.families.family import Components, Family
from sd_scripts.formats.words import counted
from sd_scripts.library.compile_support import chosen_of
from sd_scripts.library.compile_utils import MIN_GRAPH_LIMIT, compile_model
from sd_scripts.options.compile import CUDA_GRAPHS_KEY, CompileMoreOptions, CompileOptions
from sd_scripts.options.dataset import CacheOptions
from sd_scripts.options.recording import records_steps, uses_cuda_graphs
from sd_scripts.options.training import TrainingOptions
from sd_scripts.planning.compile_plan import STATIC_SHAPES, distinct_shapes, expected_graphs
from sd_scripts.runs.compile_cache import cache_folder, graphs_in, in_use
from sd_scripts.runs.cpp_compiler import NO_COMPILER
from sd_scripts.training import compile_report
from sd_scripts.training.compile_progress import COMPILING, CompileProgress
from sd_scripts.training.context import Context, Failed
from sd_scripts.training.cuda_graph_skips import CudaGraphSkips
from sd_scripts.training.self_check import SelfCheck, slower
from sd_scripts.training.step_graphs import RecordingFailed, end_failed_recording

logger = logging.getLogger(__name__)
T = TypeVar("T")

GRAPHS_OF_LAYER = 4
"""Upper bound of the graphs of a text encoder layer at one batch size: it is captured again where its input needs no
gradient, and T5's first layer computes what the others read."""


_warming: list[threading.Thread] = []


def warm_up(options: CompileOptions, more: CompileMoreOptions, device: torch.device) -> None:
    """Start the compiler in the background while the model loads, since that takes seconds."""
    if chosen_of(options, more) and options.compile_backend == "inductor":
        import torch._dynamo  # noqa: F401  # two threads that import the compiler at once may wait for each other

        _warming.append(threading.Thread(target=_start_inductor, args=(device,), daemon=True))
        _warming[-1].start()


def _start_inductor(device: torch.device) -> None:
    with suppress(Exception):  # failures are reported where it is needed
        from torch._inductor.async_compile import AsyncCompile
        from torch._inductor.codecache import torch_key
        from torch._inductor.cpu_vec_isa import pick_vec_isa

        if device.type == "cuda":
            AsyncCompile.warm_pool()
            # the first graph loads pattern tables and Triton; not worth it on a CPU
            x = torch.ones(64, 64, device=device, requires_grad=True)
            torch.compile(lambda x: torch.nn.functional.gelu(x @ x).sum())(x).backward()
            return
        if not graphs_in(cache_folder()):  # processes that compile would only take a warm start's time
            AsyncCompile.warm_pool()
        torch_key()  # hashes the sources of PyTorch
        pick_vec_isa()  # tries what the CPU can do, in processes of their own


def _of_warm_up(device: torch.device) -> int:
    """Return how many of the graphs in the cache are the warm-up's own."""
    return int(device.type == "cuda")


def wait_until_warm() -> None:
    """Wait for warm_up before any module is called: tracing intercepts calls in all threads."""
    while _warming:
        _warming.pop().join()


def graphs_expected(family: Family, denoiser: nn.Module, sizes: int) -> int:
    """Return an upper bound of the graphs of one block class for `sizes` batch shapes; past it, blocks run eagerly.

    Equal blocks are captured again where their input needs no gradient, and at each depth of the U-Net, where images
    are smaller; at equal widths the weights do not show that.
    """
    return sizes * max(2 * max(family.blocks.graph_kinds(denoiser).values()), MIN_GRAPH_LIMIT)


class Compilation:
    """Compiles the modules of a run and watches the compiler."""

    def __init__(
        self,
        context: Context,
        family: Family,
        components: Components,
        shapes: Iterable[BatchShape],
        *,
        checks: bool = False,
    ):
        """`checks`: the first steps run uncompiled, to be compared with compiled ones."""
        settings = context.settings
        self._context, self._family, self._components, self._shapes = context, family, components, list(shapes)
        self._options, self._more = settings[CompileOptions], settings[CompileMoreOptions]
        self._chosen = self._options
        # outside of steps, CUDA graphs would free their memory too early
        self._options_without_graphs = self._options.without_cuda_graphs()
        self._records = records_steps(settings, cuda=context.device.type == "cuda", sharded=context.sharded)
        """Whether a step is recorded as a whole; blocks then need no CUDA graphs of their own."""
        checkpoints = settings[TrainingOptions].gradient_checkpointing  # which breaks those of blocks
        if (self._records or checkpoints) and self._options_without_graphs:
            self._options = self._options_without_graphs
        self._vae_ahead = settings[CacheOptions].caches_latents
        self._limit = 0
        wait_until_warm()
        if chosen_of(self._options, self._more):
            _keep_metrics()
            torch._functorch.config.activation_memory_budget = self._more.activation_memory_budget
        self._before = self._seen = Counts.so_far()
        self._places: dict[compile_report.Place, str] = {}
        self._metrics, self._known_breaks, self._told_breaks = 0, set[str](), set[str]()
        if chosen_of(self._options, self._more):
            self._forget_the_past()
        self._failed = self.recompile_limit_hit = False
        self._checks_guards = False
        """Whether a skipped guard would have failed, so that none is skipped any more."""
        self.self_check = SelfCheck() if checks and self.active else None
        """Compares uncompiled and compiled steps; None if there is nothing to compare, or once it is known."""
        self._compile_denoiser: Callable[[CompileOptions], None] | None = None
        self._expected: int | None = None
        """The plan's estimate of the graphs that steps will compile."""
        self._progress = CompileProgress(context, self._progress_note)
        self._skips = CudaGraphSkips()
        if self.active:
            self._progress.install()
            self._use_cache()
            self._skips.listen(context.at_end)

    @property
    def active(self) -> bool:
        return bool(chosen_of(self._options, self._more)) and not self._failed

    def _use_cache(self) -> None:
        """Keep the compiler cache from being cleared during the run, and tell what it holds already."""
        if self._options.compile_backend == "inductor":
            self._context.at_end.enter_context(in_use())
            if held := graphs_in(cache_folder()) - _of_warm_up(self._context.device):
                text = f"Warm start: the compiler cache holds {counted(held, 'graph')} of earlier runs"
                self._context.emit("compile", cached_before=held, text=text)
                if self._context.is_main:
                    logger.info(text)

    @property
    def eager_first(self) -> bool:
        """Whether steps still run uncompiled, to be compared with compiled ones."""
        return self.self_check is not None and self.self_check.eager

    @property
    def compiles_steps(self) -> bool:
        return self.active and not self.eager_first

    @property
    def skips_guards(self) -> bool:
        """Whether steps may skip guards of graphs whose inputs have been seen."""
        return self.compiles_steps and self._more.compile_skip_guards and not self._checks_guards

    @property
    def cuda_graphs(self) -> bool:
        """Whether blocks replay CUDA graphs of their own."""
        return self.active and not self._records and uses_cuda_graphs(self._options)

    @property
    def records_steps(self) -> bool:
        """Whether forward and backward are recorded as one CUDA graph for each batch shape."""
        return self._records and not self.eager_first

    def compile_ahead(self) -> None:
        """Compile the VAE, if it encodes only before the first step."""
        if self._more.compile_vae and self._vae_ahead and self._options_without_graphs:
            self._compile_vae(self._options_without_graphs, self._graphs_of_vae())

    def compile_for_steps(self, encoders: Sequence[nn.Module]) -> None:
        """Compile what steps run: the denoiser, these text encoders, and the VAE unless it encoded ahead.

        Graphs are counted together: U-Net and VAE share a block class, all text encoders the code around a layer.
        """
        if not self.active:
            return
        batches, without_graphs = len({shape.images for shape in self._shapes}), self._options_without_graphs
        text = encoders if self._more.compile_text_encoder and without_graphs else ()
        vae = self._more.compile_vae and not self._vae_ahead
        expected = GRAPHS_OF_LAYER * len(text) * batches + vae * self._graphs_of_vae()
        if self._options.compile:
            denoiser, sizes = self._components.denoiser, len(self._shapes)
            expected += graphs_expected(self._family, denoiser, sizes)
            self._compile_denoiser = partial(
                self._compile,
                module=denoiser,
                blocks=self._family.blocks.denoiser(denoiser),
                name=self._family.blocks.title,
                expected=expected,
                shapes=distinct_shapes(self._family.card, self._shapes),
                hooked=self._context.sharded,
            )
            if not self._recorded_eagerly:
                self._compile_denoiser(self._options)
            self._expected = None if text or vae else self._planned_graphs()
        if without_graphs:
            for encoder in text:
                name = f"text encoder {self._components.text_encoders.index(encoder) + 1}"
                if layers := self._family.blocks.text_encoder(encoder):
                    self._compile(without_graphs, encoder, [layers], name, expected, shapes=batches, hooked=True)
                else:
                    self._context.warn(f"compile_text_encoder: {name} has no repeated layers, so it is not compiled")
            if vae:
                self._compile_vae(without_graphs, expected)
        if self.self_check:
            torch.compiler.set_stance("force_eager")
        elif expected and not self._recorded_eagerly:
            self._context.phase(COMPILING)

    @property
    def _recorded_eagerly(self) -> bool:
        """Whether the step is recorded as a whole without compiling the denoiser."""
        return self._records and (not self._options.compile or self._options.compile_backend == "cudagraphs")

    def begin(self) -> None:
        """Compile from now on: enough uncompiled steps are timed."""
        assert self.self_check
        self.self_check.begin_compiled()
        torch.compiler.set_stance("default")
        self._context.phase(COMPILING)

    def end_check(self) -> None:
        """Tell which steps are faster, and continue with these."""
        assert self.self_check
        medians, self.self_check = self.self_check.medians(), None
        if medians is None:
            return
        plain, compiled = (1000 * seconds for seconds in medians)
        told = f"compiled steps take {compiled:.1f} ms, uncompiled ones {plain:.1f} ms"
        if not slower(medians):
            self._context.emit("compile", step=0, text=f"compile_auto: {told}")
            return
        self._stop_compiling()
        self._context.warn(
            f"compile_auto: {told}, so the run continues without compiling. Turn compile off for such runs"
        )

    def close(self) -> None:
        """Leave the compiler of this process to others as it was: a run may have ended eagerly."""
        if chosen_of(self._options, self._more):
            torch.compiler.set_stance("default")

    def _stop_compiling(self) -> None:
        torch.compiler.set_stance("force_eager")
        torch._dynamo.reset()  # frees the memory of the graphs
        self._failed = True

    def _planned_graphs(self) -> int | None:
        card = self._family.card
        return expected_graphs(card, self._shapes, self._options.compile_dynamic) if card.plan.graphs else None

    def _progress_note(self, backward: int) -> str:
        now = Counts.so_far() - self._before
        return compile_report.progress_note(now.graphs, now.cache_hits, self._expected, backward)

    def _graphs_of_vae(self) -> int:
        """Return the graphs to expect: image batches may be encoded in slices, the last one smaller."""
        return 2 * len(self._family.blocks.vae(self._components.vae)) * len(self._shapes)

    def _compile_vae(self, options: CompileOptions, expected: int) -> None:
        vae = self._components.vae
        if blocks := self._family.blocks.vae(vae):
            self._compile(options, vae, [blocks], "VAE encoder", expected, shapes=len(self._shapes))
        else:
            self._context.warn("compile_vae: this VAE has no repeated blocks, so it is not compiled")

    def _compile(
        self,
        options: CompileOptions,
        module: nn.Module,
        blocks: Sequence[Iterable[nn.Module]],
        name: str,
        expected: int,
        *,
        shapes: int,
        hooked: bool = False,
    ) -> None:
        self._limit = options.compile_cache_size_limit or max(expected, MIN_GRAPH_LIMIT)
        blocks = [list(part) for part in blocks]
        self._places |= compile_report.places_of(block for part in blocks for block in part)
        compile_model(
            options,
            module,
            blocks,
            log_prefix=name,
            graphs_expected=expected,
            static=shapes <= STATIC_SHAPES,
            hooked=hooked,
            chosen_mode=self._chosen.compile_mode if self._records else "",
        )

    def with_fallback(self, do: Callable[[], T]) -> T:
        """Return the result of `do`, run without compiling if that fails."""
        try:
            return do()
        except Exception as error:
            if not self.recovers_from(error):
                raise
        return do()

    def watch(self, step: int, shape: str = "") -> None:
        """Report what was compiled in this step (0: before the first), whose batches have this shape.

        Warn once when compile_cache_size_limit is hit: `recompile_limit_hit` is true from then on, and further shapes
        run eagerly.
        """
        if not self.active:
            return
        self._progress.step_done()
        now = Counts.so_far()
        if now.refused > self._before.refused and not self.recompile_limit_hit:
            self.recompile_limit_hit = True
            remedy = "0, which computes it" if self._options.compile_cache_size_limit else str(2 * self._limit)
            self._context.warn(
                f"compile_cache_size_limit: {self._limit} graphs for each kind of block are not enough; further "
                f"shapes run uncompiled, which is slow. Set it to {remedy}"
            )
        self._warn_about_skips(now)
        if now.graphs == self._seen.graphs:
            return
        total, metrics = now - self._before, self._new_metrics()
        where = f"step {step}" + (f" ({shape})" if shape else "") if step else "before the first step"
        graphs = compile_report.graphs_in(metrics, self._places)
        self._warn_about_breaks(metrics)
        self._context.emit(
            "compile",
            step=step,
            graphs=total.graphs,
            breaks=total.breaks,
            recompiles=total.recompiles,
            seconds=round(total.seconds, 1),
            cache_hits=total.cache_hits,
            cache_misses=total.cache_misses,
            cache_bypasses=total.cache_bypasses,
            cuda_graph_skips=total.cuda_graph_skips,
            text=compile_report.summary(where, graphs),
            compiled=compile_report.as_event(graphs),
            broke=compile_report.breaks_in(metrics),
        )
        self._seen = now

    def _forget_the_past(self) -> None:
        """Do not report what an earlier run in this process compiled."""
        from torch._dynamo.utils import counters

        self._new_metrics()
        self._known_breaks |= counters["graph_break"].keys()

    def _new_metrics(self) -> list[Any]:
        """Return Dynamo's metrics of what was compiled since the last call."""
        from torch._dynamo.utils import get_compilation_metrics

        metrics = list(get_compilation_metrics())
        new, self._metrics = metrics[self._metrics :], len(metrics)
        return new

    def _warn_about_breaks(self, metrics: Sequence[Any]) -> None:
        """Warn once about each place where a graph broke, with what Dynamo says about it."""
        from torch._dynamo.utils import counters

        said = list(compile_report.explanations(counters["graph_break"], self._known_breaks))
        self._known_breaks |= counters["graph_break"].keys()
        for place in compile_report.breaks_in(metrics):
            self._told_breaks.add(place)
            if len(self._told_breaks) > compile_report.MOST_BREAKS:
                return
            why = said.pop(0) if said else ""
            self._context.warn_once(
                f"graph break {place}",
                f"compile: a graph ends at {place}, and the code there runs uncompiled. {why}".strip(),
            )

    def _warn_about_skips(self, now: "Counts") -> None:
        """Warn once of each reason for which CUDA graphs are skipped. Without a GPU there are none to skip."""
        reasons = self._skips.take()
        if now.cuda_graph_skips > self._before.cuda_graph_skips and self._context.device.type == "cuda":
            reasons = reasons or ["inductor gives no reason"]
        for reason in reasons:
            self._context.warn_once(
                f"CUDA graphs skipped: {reason}",
                f"{self._options.cuda_graphs_from or 'compile_backend'}: a compiled graph runs without CUDA graphs, "
                f"which is slower: {reason}",
            )

    def totals(self) -> "Counts | None":
        """Return what this run has compiled; None if it does not compile."""
        return Counts.so_far() - self._before if self.active else None

    def recovers_from(self, error: Exception) -> bool:
        """Return whether a failed step, of which nothing may be left, can be repeated without CUDA graphs or eagerly.
        Raises Failed if compiling failed under compile_fullgraph."""
        if isinstance(error, RecordingFailed):
            self._continue_unrecorded(error)
            return True
        if not self.active:
            return False
        if UNGUARDED in str(error) and not self._context.sharded:  # with FSDP all processes must repeat the step
            self._checks_guards = True
            return True
        if self.eager_first and isinstance(error, torch.OutOfMemoryError):  # compiled steps take less
            self.begin()
            return True
        compile_denoiser, less = self._compile_denoiser, self._options.without_cuda_graphs()
        if compile_denoiser and less and self.cuda_graphs and _is_cuda_graph_error(error):
            chosen = self._options.cuda_graphs_from
            how = (
                f"with compile_mode = {less.compile_mode}" if chosen == "compile_mode" else f"without {CUDA_GRAPHS_KEY}"
            )
            self._context.warn(
                f"{chosen}: CUDA graphs failed: {_summary(error)}. The run continues {how}, which compiles again"
            )
            self._options = less
            end_failed_recording()
            torch._dynamo.reset()
            compile_denoiser(less)
            return True
        # an error of the step's own code, such as out of memory, would come again when it runs eagerly
        compiling = _is_compiler_error(error)
        if isinstance(error, torch.OutOfMemoryError) or not (compiling or _is_of_compiled_code(error)):
            return False
        what, remedy = f"torch.compile failed: {_summary(error)}", self._remedy(error)
        if self._options.compile_fullgraph and compiling:
            raise Failed(what, f"{remedy}, or turn compile_fullgraph off to continue without compiling") from error
        if self._context.sharded and self._compile_denoiser and not self._context.all_reach("without compiling"):
            alone = "but not in all processes, and with FSDP all must run the same code"
            raise Failed(f"{what}, {alone}", f"{remedy}, or turn compile off") from error
        self._stop_compiling()
        self._context.warn(f"{what}. The run continues without compiling. To compile, {remedy}.")
        return True

    def _continue_unrecorded(self, error: RecordingFailed) -> None:
        """Continue with what is recorded, else with compiled blocks."""
        chosen = "record_steps"
        if uses_cuda_graphs(self._chosen):
            chosen = self._chosen.cuda_graphs_from or "compile_backend"
        if not error.none_left:
            rest = "are replayed for batches of other shapes"
            self._context.warn(f"{chosen}: no more CUDA graphs can be recorded: {error}. Those that are there {rest}")
            return
        if self._recorded_eagerly and self._compile_denoiser:
            if error.out_of_memory:
                self._failed = True
            else:
                self._compile_denoiser(self._options)  # whose blocks then replay graphs of their own
        self._records = False
        self._context.warn(
            f"{chosen}: the step cannot be recorded as a CUDA graph: {error}. The run continues without recording it"
        )

    def _remedy(self, error: Exception) -> str:
        options = self._options
        if type(error).__name__ == "FailOnRecompileLimitHit":
            return f"set compile_cache_size_limit = {'0' if options.compile_cache_size_limit else 2 * self._limit}"
        if "InvalidCxxCompiler" in f"{type(error).__name__} {error}":
            return NO_COMPILER
        if options.compile_backend != "inductor":
            return "set compile_backend = inductor"
        if options.compile_options:
            return "remove compile_options"
        if options.compile_mode != "default":
            return "set compile_mode = default"
        if options.compile_dynamic != "false":
            return "set compile_dynamic = false"
        return "set compile_backend = aot_eager to see whether capturing or code generation fails"


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What Dynamo has done."""

    graphs: int
    breaks: int
    refused: int
    """Frames that ran eagerly because the recompile limit was hit."""
    recompiles: int
    seconds: float
    cache_hits: int
    """Graphs that came whole, with their backward pass, from inductor's cache."""
    cache_misses: int
    cache_bypasses: int
    """Graphs that inductor cannot cache."""
    cuda_graph_skips: int
    """Graphs, forward or backward, that run without CUDA graphs though they were asked for."""

    @classmethod
    def so_far(cls) -> "Counts":
        """Return the counts of this process; a process that compiles nothing does not import the compiler for them."""
        if "torch._dynamo" not in sys.modules:
            return cls(**dict.fromkeys((each.name for each in fields(cls)), 0))
        from torch._dynamo.utils import counters, get_compilation_metrics

        metrics = get_compilation_metrics()
        return cls(
            graphs=counters["stats"]["unique_graphs"],
            breaks=sum(counters["graph_break"].values()),
            refused=sum(n for what, n in counters["unimplemented"].items() if "recompile limit" in what),
            recompiles=sum(1 for metric in metrics if getattr(metric, "recompile_reason", None)),
            seconds=sum(getattr(metric, "entire_frame_compile_time_s", None) or 0.0 for metric in metrics),
            cache_hits=counters["aot_autograd"]["autograd_cache_hit"],
            cache_misses=counters["aot_autograd"]["autograd_cache_miss"],
            cache_bypasses=counters["aot_autograd"]["autograd_cache_bypass"],
            cuda_graph_skips=counters["inductor"]["cudagraph_skips"],
        )

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(**{each.name: getattr(self, each.name) - getattr(other, each.name) for each in fields(self)})


MOST_METRICS = 100_000
"""Compilations that Dynamo keeps a record of. It would forget all but the last 64, and recompiles could not be counted
for runs with more graphs."""


def _keep_metrics() -> None:
    from torch._dynamo import utils

    if hasattr(utils, "set_compilation_metrics_limit"):
        utils.set_compilation_metrics_limit(MOST_METRICS)


def _summary(error: Exception) -> str:
    """Return the error's class and its first line, with the second one if the first ends with a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    return f"{type(error).__name__}: {said[:300]}".removesuffix(": ")


def _is_compiler_error(error: Exception) -> bool:
    compiler = ("torch._dynamo", "torch._inductor", "torch._functorch", "triton")
    return any(kind.__module__.startswith(compiler) for kind in type(error).__mro__)


UNGUARDED = "Recompilation triggered with skip_guard_eval_unsafe"
"""How PyTorch's error begins if code must be compiled again while guards are skipped."""
COMPILED_CODE = ("torch/_dynamo/", "torch/_inductor/", "torch/_functorch/", "triton/", "torch/autograd/graph.py")
"""Files whose functions are on the stack while compiled code runs. The last one calls backward: an error of the
autograd engine about the result of a compiled backward shows no other."""
CUDA_GRAPHS = ("torch/_inductor/cudagraph_trees.py", "torch/_inductor/cudagraph_utils.py", "torch/cuda/graphs.py")


def _is_of_compiled_code(error: Exception) -> bool:
    return any(part in path for path in _paths(error) for part in COMPILED_CODE)


def _is_cuda_graph_error(error: Exception) -> bool:
    """Return whether an error may come from CUDA graphs: from recording or replaying, or a RuntimeError, which PyTorch
    raises anywhere for a tensor that a later replay has overwritten. Out of memory counts: graphs hold their own."""
    if any(part in path for path in _paths(error) for part in CUDA_GRAPHS):
        return True
    return isinstance(error, RuntimeError) and not _is_compiler_error(error)


def _paths(error: BaseException | None) -> Iterator[str]:
    """Yield the source files in the tracebacks of an error and of its causes."""
    while error is not None:
        yield from (Path(frame.filename).as_posix() for frame in traceback.extract_tb(error.__traceback__))
        error = error.__cause__ or error.__context__
