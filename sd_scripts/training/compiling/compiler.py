"""torch.compile in a run: the compiled modules, the limits, and whether steps use them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial

import torch
from torch import nn

from sd_scripts.data.plan.epochs import BatchShape
from sd_scripts.families.common.family import Components, Family
from sd_scripts.library.compile_support import chosen_of
from sd_scripts.library.compile_utils import MIN_GRAPH_LIMIT, compile_model
from sd_scripts.library.kernels.folded_product import define_gradients
from sd_scripts.machine.compile_cache import cache_folder, graphs_in
from sd_scripts.machine.measurements import remembered
from sd_scripts.machine.nvidia import CPU, Gpu, first_gpu
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.options.dataset import CacheOptions
from sd_scripts.options.run import CudaOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.planning.compile_choice import choose_compile
from sd_scripts.planning.compile_plan import STATIC_SHAPES, distinct_shapes, expected_graphs
from sd_scripts.planning.speeds import Speeds
from sd_scripts.settings.recording import uses_cuda_graphs
from sd_scripts.training.compiling.compile_progress import COMPILING
from sd_scripts.training.compiling.compiler_log import CompilerLog
from sd_scripts.training.context import Context
from sd_scripts.training.execution.recorder import records_steps

logger = logging.getLogger(__name__)

GRAPHS_OF_LAYER = 4
"""Upper bound of the graphs of a text encoder layer at one batch size: it is captured again where its input needs no
gradient, and T5's first layer computes the others' input."""

_warming: list[threading.Thread] = []


def warm_up(options: CompileOptions, more: CompileMoreOptions, device: torch.device) -> None:
    """Start the compiler in the background while the model loads, since that takes seconds."""
    if chosen_of(options, more) and options.compile_backend == "inductor":
        import torch._dynamo  # noqa: F401  # two threads that import the compiler at the same time may deadlock

        define_gradients(device)  # imports it too, and Triton
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
            x = torch.ones(64, 64, device=device, dtype=torch.float16, requires_grad=True)  # of float32, inductor warns
            torch.compile(lambda x: torch.nn.functional.gelu(x @ x).sum())(x).backward()
            return
        if not graphs_in(cache_folder()):  # processes that compile would only take a warm start's time
            AsyncCompile.warm_pool()
        torch_key()  # hashes the sources of PyTorch
        pick_vec_isa()  # probes the CPU's features, in processes of their own


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


def choose_automatically(context: Context, shapes: Mapping[BatchShape, float], *, steps: int) -> bool:
    """Replace compile_auto by its choice for this many steps; return whether the run checks the choice."""
    settings = context.settings
    options = context.settings[CompileOptions]
    if not (options.compile and options.compile_auto):
        return False
    choice = None
    if context.is_main:
        gpu = first_gpu() if context.device.type == "cuda" else Gpu(CPU)
        choice = choose_compile(Speeds(settings=settings, gpu=gpu, known=remembered()), shapes, steps)
    choice = context.agreed(choice)
    context.settings = settings.replaced(choice.changes)
    logger.info("compile_auto: %s", choice)
    context.emit("compile", step=0, text=f"compile_auto: {choice}")
    # processes would decide differently, and a resumed run must compute the same as an uninterrupted one
    alone = context.world == 1 and not settings[CudaOptions].deterministic
    return alone and context.settings[CompileOptions].compile


class Compiler:
    """Compiles the modules of a run."""

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
        self._context = context
        self._family = family
        self._components = components
        self._shapes = list(shapes)
        self.options = settings[CompileOptions]
        self._more = settings[CompileMoreOptions]
        self.chosen = self.options
        """The options as set; the ones in use may have no CUDA graphs."""
        # outside of steps, CUDA graphs would free their memory too early
        self._options_without_graphs = self.options.without_cuda_graphs()
        self._records = records_steps(context)
        """Whether a step is recorded as a whole; blocks then need no CUDA graphs of their own."""
        checkpoints = settings[TrainingOptions].gradient_checkpointing  # which breaks the graphs of blocks
        if (self._records or checkpoints) and self._options_without_graphs:
            self.options = self._options_without_graphs
        self._vae_ahead = settings[CacheOptions].caches_latents
        self._failed = False
        self.checks_guards = False
        """Whether a skipped guard would have failed, so that none is skipped any more."""
        self.eager_first = checks and self.active
        """Whether steps still run uncompiled, to be compared with compiled ones."""
        self._compile_denoiser: Callable[[CompileOptions], None] | None = None

    @cached_property
    def log(self) -> CompilerLog:
        """What is compiled from the first look on: not the graph of warm_up, which ends before."""
        wait_until_warm()
        return CompilerLog(self._context, self.options, active=self.active)

    @property
    def active(self) -> bool:
        return bool(chosen_of(self.options, self._more)) and not self._failed

    @property
    def compiles_steps(self) -> bool:
        return self.active and not self.eager_first

    @property
    def compiles_denoiser(self) -> bool:
        """Whether the denoiser is compiled, or will be if its steps cannot be recorded."""
        return self._compile_denoiser is not None

    @property
    def skips_guards(self) -> bool:
        """Whether steps may skip guards of graphs whose inputs have been seen."""
        # beyond the recompile limit, only their guards distinguish eager code from graphs
        checks = self.checks_guards or self.log.recompile_limit_hit
        return self.compiles_steps and self._more.compile_skip_guards and not checks

    @property
    def cuda_graphs(self) -> bool:
        """Whether blocks replay CUDA graphs of their own."""
        return self.active and not self._records and uses_cuda_graphs(self.options)

    @property
    def records_steps(self) -> bool:
        """Whether forward and backward are recorded as one CUDA graph for each batch shape."""
        return self._records and not self.eager_first

    @property
    def recorded_eagerly(self) -> bool:
        """Whether the step is recorded as a whole without compiling the denoiser."""
        return self._records and (not self.options.compile or self.options.compile_backend == "cudagraphs")

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
        batches = len({shape.images for shape in self._shapes})
        without_graphs = self._options_without_graphs
        text = encoders if self._more.compile_text_encoder and without_graphs else ()
        vae = self._more.compile_vae and not self._vae_ahead
        expected = GRAPHS_OF_LAYER * len(text) * batches + vae * self._graphs_of_vae()
        if self.options.compile:
            denoiser = self._components.denoiser
            sizes = len(self._shapes)
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
            if not self.recorded_eagerly:
                self._compile_denoiser(self.options)
            if not (text or vae):
                setting = self.options.compile_dynamic
                self.log.expected = expected_graphs(self._family.card, self._shapes, setting)
        if without_graphs:
            for encoder in text:
                name = f"text encoder {self._components.text_encoders.index(encoder) + 1}"
                if layers := self._family.blocks.text_encoder(encoder):
                    self._compile(without_graphs, encoder, [layers], name, expected, shapes=batches, hooked=True)
                else:
                    self._context.warn(f"compile_text_encoder: {name} has no repeated layers, so it is not compiled")
            if vae:
                self._compile_vae(without_graphs, expected)
        if self.eager_first:
            torch.compiler.set_stance("force_eager")
        elif expected and not self.recorded_eagerly:
            self._context.phase(COMPILING)

    def begin(self) -> None:
        """Compile from now on: enough uncompiled steps are timed, or memory does not suffice for them."""
        self.eager_first = False
        torch.compiler.set_stance("default")
        self._context.phase(COMPILING)

    def stop_recording(self, *, out_of_memory: bool) -> None:
        """Continue without recording steps; with compiled blocks, which replay graphs of their own, if the denoiser was
        to be compiled and memory suffices."""
        if self.recorded_eagerly and self._compile_denoiser:
            if out_of_memory:
                self._failed = True
            else:
                self._compile_denoiser(self.options)
        self._records = False

    def compile_again(self, options: CompileOptions) -> None:
        """Compile the denoiser with other options, without the graphs that there are."""
        assert self._compile_denoiser
        self.options = self.log.options = options
        torch._dynamo.reset()
        self._compile_denoiser(options)

    def stop(self) -> None:
        """Continue without compiled code."""
        torch.compiler.set_stance("force_eager")
        torch._dynamo.reset()  # frees the memory of the graphs
        self._failed = True

    def watch(self, step: int, shape: str = "") -> None:
        """Report the compilations of this step (0: before the first), whose batches have this shape."""
        if self.active:
            self.log.watch(step, shape)

    def close(self) -> None:
        """Restore the compiler of this process for others: a run may have ended eagerly."""
        if chosen_of(self.options, self._more):
            torch.compiler.set_stance("default")

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
        blocks = [list(part) for part in blocks]
        limit = options.compile_cache_size_limit or max(expected, MIN_GRAPH_LIMIT)
        self.log.add(blocks, limit)
        torch._functorch.config.activation_memory_budget = self._more.activation_memory_budget
        compile_model(
            options,
            module,
            blocks,
            log_prefix=name,
            graphs_expected=expected,
            static=shapes <= STATIC_SHAPES,
            hooked=hooked,
            chosen_mode=self.chosen.compile_mode if self._records else "",
        )
