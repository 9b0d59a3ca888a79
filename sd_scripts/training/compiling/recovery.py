"""What happens when compiled or recorded code fails: which errors the run survives, and how it continues."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import torch

from sd_scripts.machine.cpp_compiler import NO_COMPILER
from sd_scripts.options.compile import CUDA_GRAPHS_KEY, CompileOptions
from sd_scripts.settings.recording import uses_cuda_graphs
from sd_scripts.training.compiling.compiler import Compiler
from sd_scripts.training.context import Context, Failed
from sd_scripts.training.execution.recorder import RecordingFailed, end_failed_recording

T = TypeVar("T")

UNGUARDED = "Recompilation triggered with skip_guard_eval_unsafe"
"""How PyTorch's error begins if code must be compiled again while guards are skipped."""
COMPILED_CODE = ("torch/_dynamo/", "torch/_inductor/", "torch/_functorch/", "triton/", "torch/autograd/graph.py")
"""Files whose functions are on the stack while compiled code runs. The last one calls backward: an error of the
autograd engine about the result of a compiled backward shows no other."""
CUDA_GRAPHS = ("torch/_inductor/cudagraph_trees.py", "torch/_inductor/cudagraph_utils.py", "torch/cuda/graphs.py")


class Recovery:
    """Lets a run continue with less of the compiler."""

    def __init__(self, context: Context, compiler: Compiler):
        self._context, self._compiler = context, compiler

    def with_fallback(self, do: Callable[[], T]) -> T:
        """Return the result of `do`, run without compiling if that fails."""
        try:
            return do()
        except Exception as error:
            if not self.recovers_from(error):
                raise
        return do()

    def recovers_from(self, error: Exception) -> bool:
        """Return whether a failed step, whose effects are undone, can be repeated without CUDA graphs or eagerly.
        Raises Failed if compiling failed under compile_fullgraph."""
        compiler = self._compiler
        if isinstance(error, RecordingFailed):
            self._continue_unrecorded(error)
            return True
        if not compiler.active:
            return False
        if UNGUARDED in str(error) and not self._context.sharded:  # with FSDP all processes must repeat the step
            compiler.checks_guards = True
            return True
        if compiler.eager_first and isinstance(error, torch.OutOfMemoryError):  # compiled steps take less
            compiler.begin()
            return True
        less = compiler.options.without_cuda_graphs()
        if compiler.compiles_denoiser and less and compiler.cuda_graphs and _is_cuda_graph_error(error):
            self._continue_without_cuda_graphs(error, less)
            return True
        # an error of the step's own code, such as out of memory, would come again when it runs eagerly
        compiling = _is_compiler_error(error)
        if isinstance(error, torch.OutOfMemoryError) or not (compiling or _is_of_compiled_code(error)):
            return False
        what, remedy = f"torch.compile failed: {_summary(error)}", self._remedy(error)
        if compiler.options.compile_fullgraph and compiling:
            raise Failed(what, f"{remedy}, or turn compile_fullgraph off to continue without compiling") from error
        together = not self._context.sharded or not compiler.compiles_denoiser
        if not together and not self._context.all_reach("without compiling"):
            alone = "but not in all processes, and with FSDP all must run the same code"
            raise Failed(f"{what}, {alone}", f"{remedy}, or turn compile off") from error
        compiler.stop()
        self._context.warn(f"{what}. The run continues without compiling. To compile, {remedy}.")
        return True

    def _continue_unrecorded(self, error: RecordingFailed) -> None:
        """Continue with the recorded graphs, else with compiled blocks."""
        chosen = self._compiler.chosen
        option = "record_steps"
        if uses_cuda_graphs(chosen):
            option = chosen.cuda_graphs_from or "compile_backend"
        if not error.none_left:
            rest = "are replayed for batches of other shapes"
            self._context.warn(f"{option}: no more CUDA graphs can be recorded: {error}. The existing ones {rest}")
            return
        self._compiler.stop_recording(out_of_memory=error.out_of_memory)
        self._context.warn(
            f"{option}: the step cannot be recorded as a CUDA graph: {error}. The run continues without recording it"
        )

    def _continue_without_cuda_graphs(self, error: Exception, less: CompileOptions) -> None:
        """Compile the blocks again, without CUDA graphs of their own."""
        chosen = self._compiler.options.cuda_graphs_from
        continued = f"The run continues without {CUDA_GRAPHS_KEY}, which compiles again"
        if chosen == "compile_mode":
            continued = f"The run continues with compile_mode = {less.compile_mode}, which compiles again"
        self._context.warn(f"{chosen}: CUDA graphs failed: {_summary(error)}. {continued}")
        end_failed_recording()
        self._compiler.compile_again(less)

    def _remedy(self, error: Exception) -> str:
        options = self._compiler.options
        if type(error).__name__ == "FailOnRecompileLimitHit":
            twice = 2 * self._compiler.log.limit
            return f"set compile_cache_size_limit = {'0' if options.compile_cache_size_limit else twice}"
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
        return "set compile_backend = aot_eager to find out whether capturing or code generation fails"


def _summary(error: Exception) -> str:
    """Return the error's class and its first line, with the second one if the first ends with a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    return f"{type(error).__name__}: {text[:300]}".removesuffix(": ")


def _is_compiler_error(error: Exception) -> bool:
    compiler = ("torch._dynamo", "torch._inductor", "torch._functorch", "triton")
    return any(kind.__module__.startswith(compiler) for kind in type(error).__mro__)


def _is_of_compiled_code(error: Exception) -> bool:
    return any(part in path for path in _paths(error) for part in COMPILED_CODE)


def _is_cuda_graph_error(error: Exception) -> bool:
    """Return whether an error may come from CUDA graphs: from recording or replaying, or a RuntimeError, which PyTorch
    raises anywhere for a tensor that a later replay has overwritten. Out of memory counts: graphs have their own."""
    if any(part in path for path in _paths(error) for part in CUDA_GRAPHS):
        return True
    return isinstance(error, RuntimeError) and not _is_compiler_error(error)


def _paths(error: BaseException | None) -> Iterator[str]:
    """Yield the source files in the tracebacks of an error and of its causes."""
    while error is not None:
        yield from (Path(frame.filename).as_posix() for frame in traceback.extract_tb(error.__traceback__))
        error = error.__cause__ or error.__context__
