"""Options of torch.compile."""

from collections.abc import Iterable
from typing import Literal

from sd_scripts.options.spec import OptionGroup, option

MORE = ("compile_text_encoder", "compile_vae")


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
        "kernels; eager and aot_eager are for finding faults.",
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
        "model and the number of sizes in the data set.",
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
        "Compile the VAE's encoder too. Worth it where latents are not cached, or many pictures of few sizes are.",
        label="Compile the VAE",
        offered_with="compile",
    )
