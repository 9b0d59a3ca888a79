"""Compiler activity in a run: counts, events and warnings."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from sd_scripts.formats.words import counted
from sd_scripts.machine.compile_cache import cache_folder, graphs_in, in_use
from sd_scripts.options.compile import CompileOptions
from sd_scripts.training.compiling import compile_report
from sd_scripts.training.compiling.compile_progress import CompileProgress
from sd_scripts.training.compiling.cuda_graph_skips import CudaGraphSkips
from sd_scripts.training.context import Context

logger = logging.getLogger(__name__)

MOST_METRICS = 100_000
"""Compilations that Dynamo keeps a record of. It would forget all but the last 64, and recompiles could not be counted
for runs with more graphs."""


class CompilerLog:
    """Watches the compiler of this process and reports its work."""

    def __init__(self, context: Context, options: CompileOptions, *, active: bool):
        """`active`: something is compiled. Otherwise the compiler is not even imported."""
        self._context, self.options = context, options
        self.limit = 0
        """The recompile limit of the last compiled module."""
        self.expected: int | None = None
        """The plan's estimate of the graphs that steps will compile."""
        self.recompile_limit_hit = False
        """Whether further shapes run eagerly because compile_cache_size_limit was hit."""
        if active:
            _keep_metrics()
        self._before = self._seen = Counts.so_far()
        self._places: dict[compile_report.Place, str] = {}
        self._metrics = 0
        self._known_breaks = set[str]()
        self._reported_breaks = set[str]()
        self._progress = CompileProgress(context, self._progress_note)
        self._skips = CudaGraphSkips()
        if active:
            self._forget_the_past()
            self._progress.install()
            self._use_cache()
            self._skips.listen(context.at_end)

    def add(self, blocks: Iterable[Iterable[nn.Module]], limit: int) -> None:
        """Name the graphs of these blocks; each kind may have this many."""
        self.limit = limit
        self._places |= compile_report.places_of(block for part in blocks for block in part)

    def watch(self, step: int, shape: str = "") -> None:
        """Report the compilations of this step (0: before the first), whose batches have this shape.

        Warn once when compile_cache_size_limit is hit: `recompile_limit_hit` is true afterwards, and further shapes
        run eagerly.
        """
        self._progress.step_done()
        now = Counts.so_far()
        if now.refused > self._before.refused and not self.recompile_limit_hit:
            self.recompile_limit_hit = True
            remedy = "0, which computes it" if self.options.compile_cache_size_limit else str(2 * self.limit)
            self._context.warn(
                f"compile_cache_size_limit: {self.limit} graphs for each kind of block are not enough; further "
                f"shapes run uncompiled, which is slow. Set it to {remedy}"
            )
        self._warn_about_skips(now)
        if now.graphs == self._seen.graphs:
            return
        total = now - self._before
        metrics = self._new_metrics()
        place = f"step {step} ({shape})" if shape else f"step {step}"
        where = place if step else "before the first step"
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

    def totals(self) -> Counts:
        """Return this run's compiled graphs."""
        return Counts.so_far() - self._before

    def _use_cache(self) -> None:
        """Keep the compiler cache from being cleared during the run, and report its contents."""
        if self.options.compile_backend == "inductor":
            self._context.at_end.enter_context(in_use())
            of_warm_up = int(self._context.device.type == "cuda")  # a graph that warm_up has compiled
            if cached := graphs_in(cache_folder()) - of_warm_up:
                text = f"Warm start: the compiler cache contains {counted(cached, 'graph')} of earlier runs"
                self._context.emit("compile", cached_before=cached, text=text)
                if self._context.is_main:
                    logger.info(text)

    def _progress_note(self, backward: int) -> str:
        now = self.totals()
        return compile_report.progress_note(now.graphs, now.cache_hits, self.expected, backward)

    def _forget_the_past(self) -> None:
        """Do not report what an earlier run in this process compiled."""
        from torch._dynamo.utils import counters

        self._new_metrics()
        self._known_breaks |= counters["graph_break"].keys()

    def _new_metrics(self) -> list[Any]:
        """Return Dynamo's metrics of compilations since the last call."""
        from torch._dynamo.utils import get_compilation_metrics

        metrics = list(get_compilation_metrics())
        new = metrics[self._metrics :]
        self._metrics = len(metrics)
        return new

    def _warn_about_breaks(self, metrics: Sequence[Any]) -> None:
        """Warn once about each place where a graph broke, with Dynamo's explanation."""
        from torch._dynamo.utils import counters

        explanations = list(compile_report.explanations(counters["graph_break"], self._known_breaks))
        self._known_breaks |= counters["graph_break"].keys()
        for place in compile_report.breaks_in(metrics):
            self._reported_breaks.add(place)
            if len(self._reported_breaks) > compile_report.MOST_BREAKS:
                return
            warning = f"compile: a graph ends at {place}, and the code there runs uncompiled"
            if explanations:
                explanation = explanations.pop(0)
                warning = f"compile: a graph ends at {place}, and the code there runs uncompiled: {explanation}"
            self._context.warn_once(f"graph break {place}", warning)

    def _warn_about_skips(self, now: Counts) -> None:
        """Warn once of each reason for which CUDA graphs are skipped. Without a GPU there are none to skip."""
        reasons = self._skips.take()
        if now.cuda_graph_skips > self._before.cuda_graph_skips and self._context.device.type == "cuda":
            reasons = reasons or ["inductor gives no reason"]
        for reason in reasons:
            self._context.warn_once(
                f"CUDA graphs skipped: {reason}",
                f"{self.options.cuda_graphs_from or 'compile_backend'}: a compiled graph runs without CUDA graphs, "
                f"which is slower: {reason}",
            )


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Counters of Dynamo."""

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
    def so_far(cls) -> Counts:
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

    def __sub__(self, other: Counts) -> Counts:
        return Counts(**{each.name: getattr(self, each.name) - getattr(other, each.name) for each in fields(self)})


def _keep_metrics() -> None:
    from torch._dynamo import utils

    if hasattr(utils, "set_compilation_metrics_limit"):
        utils.set_compilation_metrics_limit(MOST_METRICS)
