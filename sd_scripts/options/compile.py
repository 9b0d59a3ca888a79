"""Options of torch.compile."""

import functools
import importlib.util
from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Literal

from sd_scripts.options.optimization.optimizer import pairs
from sd_scripts.options.optimization.optimizer_args import literals
from sd_scripts.options.spec import OptionGroup, count, option, switch

MORE = ("compile_text_encoder", "compile_vae")
PARTITIONED = ("inductor", "aot_eager")
"""Backends that choose which activations are kept."""
OF_PYTORCH = (
    *("eager_noexcept", "eager_debug", "pre_dispatch_eager", "aot_eager_default_partitioner"),
    *("aot_eager_decomp_partition", "ts", "aot_ts"),
)
"""More backends that PyTorch registers, for debugging."""
OF_PACKAGES = {"openxla": "torch_xla", "openxla_eval": "torch_xla", "tvm": "tvm"}
"""Backend -> the package it needs, which may be missing though PyTorch registers the backend."""
Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
WITHOUT_CUDA_GRAPHS: dict[Mode, Mode] = {
    "reduce-overhead": "default",
    "max-autotune": "max-autotune-no-cudagraphs",
}
"""Mode of inductor that replays CUDA graphs -> the same mode without them."""
CUDA_GRAPHS_KEY = "triton.cudagraphs"
"""Inductor's option for CUDA graphs."""


@functools.cache  # the names come from the metadata of all installed packages
def registered_backends() -> frozenset[str]:
    """Return the other torch.compile backends of this machine, found without importing torch."""
    of_packages = {name for name, package in OF_PACKAGES.items() if importlib.util.find_spec(package)}
    return frozenset({*OF_PYTORCH, *of_packages, *entry_points(group="torch_dynamo_backends").names})


class CompileOptions(OptionGroup, title="Torch Compile Settings", shown_when="compile", also_with=MORE):
    """Slow first steps, faster ones afterwards. Needs PyTorch 2.1 or newer, and Triton on NVIDIA GPUs."""

    compile: bool = switch(
        "Compile each block of the model with torch.compile. The first step of each batch shape takes up to a "
        "minute; later ones are faster.",
        label="Enable torch.compile",
    )
    compile_auto: bool = switch(
        "Choose whether to compile, and the mode, by measurements on this machine, else by a rule of thumb. The "
        "run begins with a few uncompiled steps and continues without compiling if compiled ones are not faster.",
        label="Choose automatically",
    )
    compile_backend: Literal["inductor", "cudagraphs", "eager", "aot_eager"] = option(
        "inductor",
        "Backend that compiles the captured graphs. inductor makes training faster; cudagraphs replays PyTorch's own "
        "kernels; eager and aot_eager are for debugging. Backends registered by installed packages work too.",
        more_choices=registered_backends,
    )
    compile_mode: Mode = option(
        "default",
        "default suits nearly all runs. reduce-overhead and max-autotune replay each step as a CUDA graph even if "
        "record_steps is off; max-autotune searches for minutes. Only inductor has modes.",
        active_with=("compile_backend", "inductor"),
        notes={"generate": "The default is max-autotune-no-cudagraphs."},
    )
    compile_dynamic: Literal["auto", "true", "false"] = option(
        "auto",
        "auto compiles each batch shape separately, up to 4; with more, PyTorch compiles graphs that take any shape. "
        "true does so from the start, false always compiles each shape.",
        label="Dynamic shapes",
    )
    compile_fullgraph: bool = switch(
        "Stop with an error if a block cannot be captured as one graph or fails to compile, instead of running it "
        "uncompiled."
    )
    compile_cache_size_limit: int = option(
        0,
        "Number of graphs to keep for each kind of block; further shapes run uncompiled. 0 computes it from the model "
        "and the number of batch shapes in the dataset.",
        label="Cache size limit",
        within=(0, 8192),
    )
    compile_options: list[str] = option(
        [],
        "Options of inductor as key=value, such as shape_padding=True. They override those that compile_mode stands "
        "for.",
        label="Inductor options",
        placeholder="shape_padding=True",
        active_with=("compile_backend", "inductor"),
    )

    @property
    def cuda_graphs_from(self) -> str:
        """Return the name of the option that makes inductor replay CUDA graphs; empty if it does not."""
        if self.compile_backend != "inductor":
            return ""
        given = {key: value for key, value, _ in literals(self.compile_options)}
        if CUDA_GRAPHS_KEY in given:
            return "compile_options" if given[CUDA_GRAPHS_KEY] else ""
        return "compile_mode" if self.compile_mode in WITHOUT_CUDA_GRAPHS else ""

    @property
    def leaves_recording_open(self) -> bool:
        """Return whether these options neither ask for CUDA graphs nor exclude them, so that record_steps decides."""
        if not self.compile:
            return True
        given = {key for key, _, _ in literals(self.compile_options)}
        return self.compile_backend == "inductor" and self.compile_mode == "default" and CUDA_GRAPHS_KEY not in given

    def without_cuda_graphs(self) -> "CompileOptions | None":
        """Return the options without CUDA graphs; None if they choose the backend that does nothing else."""
        if self.compile_backend == "cudagraphs":
            return None
        if not self.cuda_graphs_from:
            return self
        mode = WITHOUT_CUDA_GRAPHS.get(self.compile_mode, self.compile_mode)
        others = [item for item in self.compile_options if item.partition("=")[0].strip() != CUDA_GRAPHS_KEY]
        return replace(self, compile_mode=mode, compile_options=others)

    def check(self) -> Iterable[tuple[str, str]]:
        without_effect = self.compile and self.compile_backend != "inductor"
        if without_effect and self.compile_mode != "default":
            yield (
                "compile_mode",
                f"{self.compile_mode} needs the inductor backend; {self.compile_backend} has no modes. "
                "Set compile_mode = default or compile_backend = inductor",
            )
        if without_effect and self.compile_options:
            yield (
                "compile_options",
                f"{', '.join(self.compile_options)} needs the inductor backend; {self.compile_backend} has no options. "
                "Remove compile_options or set compile_backend = inductor",
            )
        if self.compile_auto and self.compile_backend != "inductor":
            yield (
                "compile_auto",
                f"chooses modes of inductor, not of {self.compile_backend}; set compile_backend = inductor",
            )
        yield from pairs("compile_options", self.compile_options)
        yield from (("compile_options", why) for _, _, why in literals(self.compile_options) if why)


class CompileMoreOptions(OptionGroup, title="More compile settings"):
    """Compile more than the U-Net or transformer, which pays only for what runs at every step. Text encoders and VAE
    are compiled with or without `compile` and use its backend and mode, but never CUDA graphs."""

    compile_text_encoder: bool = switch(
        "Compile the text encoders. Worth it if they are trained or captions are not cached.",
        label="Compile text encoders",
        offered_with="compile",
    )
    compile_vae: bool = switch(
        "Compile the VAE encoder. Worth it if latents are not cached, or for caching many images of few sizes.",
        label="Compile the VAE",
        offered_with="compile",
    )
    compile_skip_guards: bool = option(
        True,
        "After a batch shape has run twice, check only the guards that select a graph: small steps become up to an "
        "eighth faster. Turn it off if compiled and uncompiled runs give different results.",
        label="Skip guards",
        shown_when="compile",
        also_with=MORE,
    )
    activation_memory_budget: float = option(
        1.0,
        "Share of their activations that compiled blocks keep for the backward pass; they compute the others again. "
        "Below 1 it saves GPU memory at the price of slower steps, in smaller increments than gradient_checkpointing; "
        "0 keeps only the inputs of each block.",
        within=(0.0, 1.0),
        shown_when="compile",
    )
    compile_check_every: int | None = count(
        "Also run every Nth step eagerly, and report how far the compiled loss and gradients differ from the eager "
        "ones. Training stays the same; a checked step takes more than twice as long. 0 is off.",
        label="Check every N steps",
        shown_when="compile",
        also_with=MORE,
    )

    def checks(self, options: CompileOptions) -> bool:
        """Return whether compiled steps are compared with eager ones."""
        compiles = options.compile or self.compile_text_encoder or self.compile_vae
        return bool(compiles and self.compile_check_every)
