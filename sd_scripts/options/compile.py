"""Options of torch.compile."""

import importlib.util
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Literal

from sd_scripts.options.spec import OptionGroup, option

MORE = ("compile_text_encoder", "compile_vae")
OF_PYTORCH = (
    *("eager_noexcept", "eager_debug", "pre_dispatch_eager", "aot_eager_default_partitioner"),
    *("aot_eager_decomp_partition", "ts", "aot_ts"),
)
"""Backends that PyTorch registers too; they are for finding faults."""
OF_PACKAGES = {"openxla": "torch_xla", "openxla_eval": "torch_xla", "tvm": "tvm"}
"""Backends that PyTorch registers for a package, which may be missing."""


def registered_backends() -> set[str]:
    """The other backends that torch.compile knows on this machine; found without loading PyTorch."""
    of_packages = {name for name, package in OF_PACKAGES.items() if importlib.util.find_spec(package)}
    return {*OF_PYTORCH, *of_packages, *entry_points(group="torch_dynamo_backends").names}


class CompileOptions(OptionGroup, title="Torch Compile Settings"):
    """Pay once at the first step, save on all the others. Needs PyTorch 2.1 or newer, and Triton on NVIDIA cards."""

    compile: bool = option(
        False,
        "Compile each block of the model with torch.compile: the first step of each size of batch takes up to a "
        "minute, all later ones are faster.",
        label="Enable torch.compile",
    )
    compile_backend: Literal["inductor", "cudagraphs", "eager", "aot_eager"] = option(
        "inductor",
        "What compiles the captured graphs. inductor makes training faster. cudagraphs replays PyTorch's own "
        "kernels; eager and aot_eager are for finding faults. Another backend that an installed package registers can "
        "be named, too.",
        more_choices=registered_backends,
        shown_when="compile",
        also_with=MORE,
    )
    compile_mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = option(
        "default",
        "reduce-overhead replays CUDA graphs: fastest at small batches. max-autotune searches for minutes. On one H200 "
        "at batch 1 a step of SDXL takes 140 ms with default, 76 with reduce-overhead, 197 uncompiled. Only inductor "
        "takes a mode.",
        shown_when="compile",
        also_with=MORE,
        active_with=("compile_backend", "inductor"),
    )
    compile_dynamic: Literal["auto", "true", "false"] = option(
        "auto",
        "auto makes a set of graphs for each size of batch, up to 4 sizes; with more, PyTorch makes graphs that take "
        "any size. true wants those at once, false always makes a set for each size.",
        label="Dynamic shapes",
        shown_when="compile",
        also_with=MORE,
    )
    compile_fullgraph: bool = option(
        False,
        "End the run with an error where a block cannot be captured whole or compiling fails, instead of going on "
        "without compiling there.",
        shown_when="compile",
        also_with=MORE,
    )
    compile_cache_size_limit: int = option(
        0,
        "How many graphs to keep for each kind of block; what comes after them runs uncompiled. 0 computes it from the "
        "model and the number of sizes in the dataset.",
        label="Cache size limit",
        within=(0, 8192),
        shown_when="compile",
        also_with=MORE,
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if not self.compile:
            return
        if self.compile_backend != "inductor" and self.compile_mode != "default":
            yield (
                "compile_mode",
                f"{self.compile_mode} is a mode of inductor; the backend {self.compile_backend} takes none. "
                "Set compile_mode = default or compile_backend = inductor",
            )


class CompileMoreOptions(OptionGroup, title="Compile more"):
    """What runs beside the U-Net or transformer; worth it only where it runs at every step. Both go with `compile` or
    without it, and by its backend and mode, but for CUDA graphs."""

    compile_text_encoder: bool = option(
        False,
        "Compile the text encoders too. Worth it where they are trained or captions are not cached.",
        label="Compile text encoders",
        offered_with="compile",
    )
    compile_vae: bool = option(
        False,
        "Compile the VAE's encoder too. Worth it where latents are not cached, or many images of few sizes are.",
        label="Compile the VAE",
        offered_with="compile",
    )
