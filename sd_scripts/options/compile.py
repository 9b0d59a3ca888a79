"""Options of torch.compile."""

from collections.abc import Iterable
from typing import Literal

from sd_scripts.options.spec import OptionGroup, option


class CompileOptions(OptionGroup, title="Torch Compile Settings"):
    """Pay once at the first step, save on all the others. Needs PyTorch 2.1 or newer, and Triton on NVIDIA cards."""

    compile: bool = option(False, "Compile each block of the model with torch.compile.", label="Enable torch.compile")
    compile_backend: Literal["inductor", "cudagraphs", "eager", "aot_eager"] = option(
        "inductor",
        "Who turns the captured graph into kernels. inductor is the one that makes training faster; "
        "eager and aot_eager are for finding faults.",
        shown_when="compile",
    )
    compile_mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = option(
        "default",
        "How inductor spends its time: default compiles fastest, reduce-overhead replays CUDA graphs and is fastest "
        "at small batches, max-autotune searches longest. Only inductor takes a mode.",
        shown_when="compile",
    )
    compile_dynamic: Literal["auto", "true", "false"] = option(
        "auto",
        "Whether one graph serves several picture sizes: auto lets PyTorch decide, true asks for it, "
        "false makes one graph per size.",
        label="Dynamic shapes",
        shown_when="compile",
    )
    compile_fullgraph: bool = option(
        False, "Stop with an error at a graph break instead of running that part eagerly.", shown_when="compile"
    )
    compile_cache_size_limit: int = option(
        0,
        "How many graphs to keep for each kind of block; 0 computes it from the buckets of the data set.",
        label="Cache size limit",
        within=(0, 8192),
        shown_when="compile",
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
